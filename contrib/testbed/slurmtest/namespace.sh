#!/bin/sh
# The mount namespace of a cluster's daemons, which lasts as long as this script: another root folder, which is only
# read, with what is written there in memory, and the cluster's folder and others at their own paths. Nothing is mounted
# where other processes see it, so nothing needs to be unmounted, and no clean-up that runs wild can reach through a mount.
# Arguments: the cluster's folder, the root or "", the word driver if /proc/driver is to be the cluster's, other folders.
set -e
dir=$1 root=$2 driver=$3 top=
shift 3
if [ "$root" ]; then
	# Memory is mounted over the very folder that the whole is mounted over next: not every file system can be a layer.
	top=$dir/root
	mount -t tmpfs -o mode=755 slurmtest "$top"
	mkdir "$top/upper" "$top/work"
	mount -t overlay -o "lowerdir=$root,upperdir=$top/upper,workdir=$top/work" slurmtest "$top"
	mkdir -p "$top/proc" "$top/sys" "$top/dev" "$top/tmp"
	mount -t proc proc "$top/proc"
	mount -t sysfs -o ro sysfs "$top/sys"
	mount -t tmpfs tmpfs "$top/dev"
	mount -t tmpfs tmpfs "$top/tmp"
	for device in null:3 zero:5 full:7 random:8 urandom:9; do
		mknod -m 666 "$top/dev/${device%:*}" c 1 "${device#*:}"
	done
	mkdir -m 1777 "$top/dev/shm"
	ln -s /proc/self/fd "$top/dev/fd"
	# Of the sockets by which daemons with auth/slurm identify users: slurmctld may not make its own.
	install -d "$top/run/slurm"
	install -d -o slurm "$top/run/slurmctld"
	# slurmd of 26.05 starts no job with --export=NONE for a user without a login.
	sed -i 's,/usr/sbin/nologin,/bin/sh,' "$top/etc/passwd"
	# No name server is queried for this machine's name: that can take seconds.
	printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$(uname -n | cut -d. -f1)" >"$top/etc/hosts"
	printf '%s: files\n' passwd group shadow hosts >"$top/etc/nsswitch.conf"
fi
[ -z "$driver" ] || mount --bind "$dir/driver" "$top/proc/driver"
if [ "$root" ]; then
	for folder in "$dir" "$@"; do # without what is mounted below it: the root itself
		mkdir -p "$top$folder"
		mount --bind "$folder" "$top$folder"
	done
	mount --rbind "$top" / # what enters the namespace finds this root there
fi
echo ready
exec sleep infinity
