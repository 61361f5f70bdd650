package slurmtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// newRoot is where the other root is put together, seen by the keeper's children
// only.
func (c *Cluster) newRoot() string { return c.Path("root") }

// prepare puts the other root folder together in a mount namespace of the
// keeper's own: Options.Root as the lower layer, memory above it, and the
// cluster's folder and Options.Binds at their own paths. Nothing is mounted where
// other processes see it, so nothing needs to be unmounted, and no clean-up that
// runs wild can reach through a mount.
func (c *Cluster) prepare() error {
	if c.Options.OneCPU {
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(0, &one); err != nil { // of this thread, and of what it starts
			return fmt.Errorf("keep to one CPU: %w", err)
		}
	}
	if c.Options.Root == "" {
		if !c.Options.Driver {
			return nil
		}
		if err := apart(); err != nil {
			return err
		}
		return bind(c.Path("driver"), "/proc/driver")
	}
	if _, err := findProgram(c.Options.Root, "slurmctld"); err != nil {
		return fmt.Errorf("use root %s: %w", c.Options.Root, err)
	}
	if err := apart(); err != nil {
		return err
	}
	// The upper layer lies in memory: not every file system can be one. It is
	// mounted over the very folder that the whole is mounted over next.
	top := c.newRoot()
	if err := unix.Mount("slurmtest", top, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount memory: %w", err)
	}
	upper, work := filepath.Join(top, "upper"), filepath.Join(top, "work")
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", c.Options.Root, upper, work)
	if err := unix.Mount("slurmtest", top, "overlay", 0, layers); err != nil {
		return fmt.Errorf("mount root %s: %w", c.Options.Root, err)
	}
	for _, m := range []struct {
		kind, at string
		flags    uintptr
	}{{"proc", "/proc", 0}, {"sysfs", "/sys", unix.MS_RDONLY}, {"tmpfs", "/dev", 0}, {"tmpfs", "/tmp", 0}} {
		if err := c.mount(m.kind, m.at, m.kind, m.flags); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(top, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	for name, minor := range map[string]int{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9} {
		if err := device(filepath.Join(top, "dev", name), 1, minor); err != nil {
			return err
		}
	}
	shm := filepath.Join(top, "dev", "shm")
	if err := errors.Join(os.Mkdir(shm, 0o777), os.Chmod(shm, 0o777|os.ModeSticky)); err != nil {
		return err
	}
	if err := os.Symlink("/proc/self/fd", filepath.Join(top, "dev", "fd")); err != nil {
		return err
	}
	if err := c.socketFolders(top); err != nil {
		return err
	}
	users, err := os.ReadFile(filepath.Join(top, "etc", "passwd"))
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		// slurmd of 26.05 starts no job with --export=NONE for a user without a login.
		"passwd": strings.ReplaceAll(string(users), "/usr/sbin/nologin", "/bin/sh"),
		// No name server is queried for this machine's name: that can take seconds.
		"hosts":         "127.0.0.1 localhost\n127.0.1.1 " + c.host + "\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
	} {
		if err := os.WriteFile(filepath.Join(top, "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if c.Options.Driver {
		if err := c.mount(c.Path("driver"), "/proc/driver", "", unix.MS_BIND); err != nil {
			return err
		}
	}
	// Below the cluster's folder lies the root itself: a plain bind leaves it out.
	for _, dir := range append([]string{c.Dir}, c.Options.Binds...) {
		if err := c.mount(dir, dir, "", unix.MS_BIND); err != nil {
			return err
		}
	}
	// What enters the namespace, as a job does that has one of its own made of it, finds this root there.
	if err := unix.Mount(top, "/", "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	return nil
}

// apart gives this thread, and what it starts, a mount namespace of its own.
func apart() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	return nil
}

// bind shows a folder at another place.
func bind(folder, at string) error {
	if err := unix.Mount(folder, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	return nil
}

func (c *Cluster) mount(source, at, kind string, flags uintptr) error {
	target := filepath.Join(c.newRoot(), at)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// Prefix is what goes before a Slurm command to reach this cluster's Slurm from
// outside: nothing, or with Options.Root a change into that root. as is the user
// to become there, "" = none.
func (c *Cluster) Prefix(as string) ([]string, error) {
	if c.Options.Root == "" {
		return nil, nil
	}
	ns := fmt.Sprintf("--mount=/proc/%d/task/%d/ns/mnt", os.Getpid(), c.keeper.tid)
	argv := []string{"nsenter", ns, "chroot"}
	if as != "" {
		id, err := IDs(as)
		if err != nil {
			return nil, err
		}
		gid := strconv.FormatUint(uint64(id.Gid), 10)
		argv = append(argv, "--groups="+gid, "--userspec="+strconv.FormatUint(uint64(id.Uid), 10)+":"+gid)
	}
	return append(argv, "/"), nil
}
