#!/bin/sh
# Goes on after `init`, with an ordinary root. A place that fails says so by
# its silence: the test waits for every line by name.
mount -t devtmpfs devices /dev
mount -t proc processes /proc
mount -t sysfs system /sys
mount -t tmpfs -o mode=1777 temporary /tmp
mount -t cgroup2 -o nsdelegate groups /sys/fs/cgroup
ip link set lo up

# Root, in the topmost group.
fluffy-foreign-kernel limits root

# A user with a part of the tree, as systemd hands it to a session.
groups=/sys/fs/cgroup
delegate() {
    mkdir "$1"
    chown 1000:1000 "$1" "$1"/cgroup.procs "$1"/cgroup.threads "$1"/cgroup.subtree_control
}
echo '+cpu +memory +pids' > $groups/cgroup.subtree_control
delegate $groups/user
delegate $groups/user/session
sh -c "echo \$\$ > $groups/user/session/cgroup.procs; exec fluffy-foreign-kernel as-user limits delegated"

# A user whose part of the tree has processes of its own and so hands nothing on.
delegate $groups/crowd
sh -c "echo \$\$ > $groups/crowd/cgroup.procs; exec fluffy-foreign-kernel as-user limits crowded"

# A user who was given nothing.
fluffy-foreign-kernel as-user limits nothing

# What a shim makes for an instance.
fluffy-foreign-kernel instances

reboot -f
