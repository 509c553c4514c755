"""`python -m tools.image`: build the image, and say how large it is."""

from tools.image.build import ARCHIVE, BILL, build, size

build()
print(f"{ARCHIVE}: {size() / 1e6:.0f} MB unpacked; {BILL} lists what is in it")  # noqa: T201
