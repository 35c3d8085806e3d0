"""Texts of several kinds, to count an engine's tokens in: what it has for a character."""

TEXTS = (
    # Prose.
    (
        "The harbour was quiet when the first boats came in. Nets hung over the railings, and "
        "the smell of salt and diesel lay on the water. An old man counted crates without "
        "looking up; he had done so every morning for forty years, and the numbers had long "
        "since become a kind of song. Behind him, the market began to fill with people who "
        "wanted the best of the catch."
    ),
    # A technical question.
    (
        "Our service reads messages from a queue and writes them to a database in batches. "
        "Since last week some batches are written twice after a restart. Explain which "
        "guarantees a consumer has to give so that every message is stored exactly once, and "
        "what the database has to provide."
    ),
    # Code.
    (
        "def moving_average(values, width):\n    total = sum(values[:width])\n    result = "
        "[total / width]\n    for index in range(width, len(values)):\n        total += "
        "values[index] - values[index - width]\n        result.append(total / width)\n    "
        "return result\n"
    ),
    # Data.
    (
        '{"order": 4711, "customer": {"name": "Example Ltd", "city": "Bergen"}, "items": '
        '[{"sku": "A-100", "quantity": 3, "price": 19.95}, {"sku": "B-205", "quantity": 1, '
        '"price": 240.0}], "paid": true, "created": "2025-03-14T09:26:53Z"}'
    ),
    # Instructions, as conversations begin with them.
    (
        "You are an assistant for the customers of a railway company. Answer politely and "
        "briefly. If you do not know a connection, say so and refer to the timetable. Never "
        "promise a refund; explain instead how one is applied for. Reply in the language in "
        "which the customer writes."
    ),
)
"""One for each kind of text that prompts are mostly made of; a few hundred characters each."""
