"""Money is a whole number of cents."""


def percent_of(cents, percent):
    """Returns that share of an amount, rounded half up to the cent."""
    return int(cents * percent / 100)


def render(cents):
    """Returns an amount as the accountants expect it: `12.50 EUR`."""
    return f"{cents // 100}.{cents % 100:02d} EUR"
