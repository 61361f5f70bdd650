package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The machines' network: a bridge that leads nowhere else.
const (
	bridge   = "acceptance0"
	headAddr = "10.77.0.1"
	nodeAddr = "10.77.0.2"
	headName = "head"
	nodeName = "gpu1"
)

// inside is process 1 of its own namespaces.
func inside(ctx context.Context, o options) error {
	r, err := build(ctx, o)
	if err != nil {
		return err
	}
	began := time.Now()
	ok := r.runAll(ctx)
	r.table(time.Since(began))
	if o.keep && ctx.Err() == nil {
		fmt.Printf("\nkept: %s is LEADER %d, %s is LEADER %d; Ctrl-C ends them\n", headName, r.head.leader, nodeName, r.node.leader)
		<-ctx.Done()
		return nil
	}
	if !ok {
		return errReported
	}
	return nil
}

// build makes the stage: private mounts, the bridge, two machines that
// aren't booted yet.
func build(ctx context.Context, o options) (*rig, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return nil, fmt.Errorf("mount /proc: %w", err)
	}
	if err := unix.Mount("tmpfs", o.work, "tmpfs", 0, "mode=0755,size=4g"); err != nil {
		return nil, fmt.Errorf("mount tmpfs: %w", err)
	}
	// What nspawn leaves in /run for systemd's other tools stays in here.
	if err := os.MkdirAll("/run/systemd", 0o755); err != nil {
		return nil, err
	}
	if err := unix.Mount("tmpfs", "/run/systemd", "tmpfs", 0, "mode=0755"); err != nil {
		return nil, fmt.Errorf("mount tmpfs: %w", err)
	}
	for _, argv := range [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "link", "add", bridge, "type", "bridge"},
		{"ip", "link", "set", bridge, "up"},
	} {
		if _, err := call(ctx, "", argv...); err != nil {
			return nil, err
		}
	}
	root, err := filepath.Abs(filepath.Join(o.cache, o.release))
	if err != nil {
		return nil, err
	}
	f, err := os.Open("README.md")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &rig{o: o}
	if r.readme, err = readManual(f); err != nil {
		return nil, fmt.Errorf("README.md: %w", err)
	}
	if r.head, err = newMachine(o.work, root, headName, headAddr); err != nil {
		return nil, err
	}
	if r.node, err = newMachine(o.work, root, nodeName, nodeAddr); err != nil {
		return nil, err
	}
	return r, nil
}
