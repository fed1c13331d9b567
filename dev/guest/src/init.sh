#!/bin/sh
# The first process of a guest: mounts, makes the places that limits are tried
# in, tries them, and restarts the machine, which ends the emulator.
export PATH=/bin
mount -t devtmpfs devices /dev
# A sandbox lets its old root go, which the kernel's first one does not allow;
# the same files, mounted once more, are an ordinary root.
mount --bind / /same
cd /same && mount --move . / && exec chroot . /inside
