package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// cgroups are the hierarchies of control groups that systemd uses: the one of version 2,
// and in addition the named one where the host has version 1 as well.
func cgroups() []string {
	const top = "/sys/fs/cgroup"
	if _, err := os.Stat(top + "/cgroup.controllers"); err == nil {
		return []string{top}
	}
	var out []string
	for _, d := range []string{top + "/systemd", top + "/unified"} {
		if _, err := os.Stat(d + "/cgroup.procs"); err == nil {
			out = append(out, d)
		}
	}
	return out
}

// dropGroups removes the control groups, innermost first, once their processes are gone.
func dropGroups(name string) {
	for range 50 {
		left := false
		for _, top := range cgroups() {
			var dirs []string
			_ = filepath.WalkDir(filepath.Join(top, name), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			slices.Reverse(dirs)
			for _, d := range dirs {
				if os.Remove(d) != nil {
					left = true
				}
			}
		}
		if !left {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}
