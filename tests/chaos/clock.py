"""Wrong clocks: libfaketime shows a process another time. Its monotonic clock stays right."""

import pathlib

LIBRARIES = list(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


def is_available() -> bool:
    """Whether libfaketime is installed (Debian: libfaketime)."""
    return bool(LIBRARIES)


def skewed(seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is wrong by some seconds. Empty without libfaketime."""
    if not seconds or not LIBRARIES:
        return {}
    return {"LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME": f"{seconds:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
