# The router, and nothing that a running one does not need. docs/deploying.md says how it is used.
#
#   docker build -t narwhal-trio:0.1.0 .
#   docker run -p 127.0.0.1:8000:8000 -v ./fleet.json:/etc/narwhal/fleet.json:ro narwhal-trio:0.1.0

FROM python:3.13-slim AS build
WORKDIR /build
RUN python -m venv /opt/narwhal
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/narwhal/bin/pip install --no-cache-dir .

FROM python:3.13-slim
# By number: Kubernetes checks runAsNonRoot by it.
RUN groupadd --gid 10001 narwhal \
    && useradd --uid 10001 --gid narwhal --no-create-home --home-dir /var/lib/narwhal narwhal \
    && install --directory --owner narwhal --group narwhal /var/lib/narwhal /etc/narwhal
COPY --from=build /opt/narwhal /opt/narwhal
ENV PATH=/opt/narwhal/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 10001:10001
# State and journal, if the fleet file and --journal name no other place.
WORKDIR /var/lib/narwhal
EXPOSE 8000
# That the process answers; whether it takes requests is /ready, and no reason to restart it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
# No shell: signals reach the router, which drains at the first and ends at the second.
ENTRYPOINT ["narwhal-trio"]
CMD ["serve", "--fleet", "/etc/narwhal/fleet.json", "--host", "0.0.0.0", "--control-bind", "127.0.0.1:9000"]
