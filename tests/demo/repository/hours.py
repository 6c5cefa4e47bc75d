"""Opening hours of a counter, as "HH:MM-HH:MM"."""


def minutes(clock):
    """Minutes since midnight of a time such as "07:30"."""
    hour, minute = clock.split(":")
    return int(hour) * 60 + int(minute)


def is_open(hours, clock):
    """Whether a counter with these hours is open at this time of day."""
    opens, closes = (minutes(part) for part in hours.split("-"))
    return opens <= minutes(clock) < closes
