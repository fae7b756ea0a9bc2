"""Runs across organisations: each has a folder, a certificate, and the last word on every job."""

NOT_INSTALLED = (
    "NVIDIA FLARE, which carries runs between organisations, is not installed; install it by "
    "`pip install 'interlace[flare]'`"
)
