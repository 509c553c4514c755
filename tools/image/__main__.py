"""`python -m tools.image`: build the image, and print its size."""

from tools.image.build import ARCHIVE, BILL, build

build()
print(f"{ARCHIVE}: {ARCHIVE.stat().st_size / 1e6:.0f} MB unpacked; {BILL} lists what is in it")  # noqa: T201
