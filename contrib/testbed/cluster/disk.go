package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Disk is a small file system of its own, for the bridge's database and the agents' spools;
// see Setup.Disk.
type Disk struct{ Dir string }

// NewDisk mounts a disk of so many MiB that belongs to a user. It takes root, and is there for
// every process in this one's mount namespace.
func NewDisk(owner string, mib int) (*Disk, error) {
	u, err := user.Lookup(owner)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "slurmbridge-disk-")
	if err != nil {
		return nil, err
	}
	options := fmt.Sprintf("size=%dm,mode=755,uid=%s,gid=%s", mib, u.Uid, u.Gid)
	if err := unix.Mount("disk", dir, "tmpfs", 0, options); err != nil {
		return nil, fmt.Errorf("mount the disk: %w", errors.Join(err, os.Remove(dir)))
	}
	return &Disk{dir}, nil
}

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Fill leaves no room.
func (d *Disk) Fill() error {
	f, err := os.Create(d.ballast())
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Empty makes room again.
func (d *Disk) Empty() error { return os.Remove(d.ballast()) }

// Close unmounts it.
func (d *Disk) Close() { _ = errors.Join(unix.Unmount(d.Dir, unix.MNT_DETACH), os.Remove(d.Dir)) }
