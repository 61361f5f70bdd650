package slurmtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// bind makes the cluster's folder, /proc, the device nodes and Options.Binds seen
// inside Options.Root at the same paths. The root's own /dev holds only what is
// needed: nothing of the host's is mounted there that a clean-up could reach.
func (c *Cluster) bind() error {
	root := c.Options.Root
	if root == "" {
		return nil
	}
	for _, d := range []struct {
		name     string
		maj, min uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"random", 1, 8}, {"urandom", 1, 9}} {
		path := filepath.Join(root, "dev", d.name)
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := syscall.Mknod(path, syscall.S_IFCHR|0o666, int(d.maj<<8|d.min)); err != nil {
			return fmt.Errorf("mknod %s: %w", path, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	if err := c.mount("proc", "/proc", "proc", 0); err != nil {
		return err
	}
	for _, dir := range append([]string{c.Dir}, c.Options.Binds...) {
		if err := c.mount(dir, dir, "", syscall.MS_BIND); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) mount(source, at, kind string, flags uintptr) error {
	target := filepath.Join(c.Options.Root, at)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if kind == "proc" && mounted(target) {
		return nil
	}
	if err := syscall.Mount(source, target, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	c.mounts = append(c.mounts, target)
	return nil
}

func mounted(path string) bool {
	text, err := os.ReadFile("/proc/self/mounts")
	return err == nil && strings.Contains(string(text), " "+path+" ")
}

// unbind takes away what bind mounted, last first. It removes nothing below a
// mount.
func (c *Cluster) unbind() {
	for i := len(c.mounts) - 1; i >= 0; i-- {
		if err := syscall.Unmount(c.mounts[i], 0); err != nil {
			_ = syscall.Unmount(c.mounts[i], syscall.MNT_DETACH)
			continue
		}
	}
	c.mounts = nil
}
