"""Virtual machines: a command on another kernel, another architecture, or below systemd.

`python -m tools.vm --suite trixie -- python -m pytest tests/kernel` boots Debian 13 with its kernel in qemu, runs the
command in this checkout, and ends with its exit status.  The processor is emulated, so a machine needs no rights but
root's, and is some eight times slower.  `kernels` provides kernels, `machine` boots them, guest.sh is what they start.
"""
