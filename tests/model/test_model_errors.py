from narwhal.model import Fault, NarwhalError, errors


def leaves() -> list[type[NarwhalError]]:
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, NarwhalError)
    ]


def test_only_engine_errors_are_retryable() -> None:
    for each in leaves():
        assert each.retryable is (each.fault is Fault.ENGINE), each


def test_client_errors_are_4xx_and_nothing_else_is() -> None:
    for each in leaves():
        assert (400 <= each.status < 500) is (each.fault is Fault.CLIENT), each
