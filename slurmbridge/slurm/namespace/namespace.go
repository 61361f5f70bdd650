// Package namespace finds out whether a plugin of Slurm gives each job its own /dev/shm, from which processes can't
// reach their GPU's MPS server: job_container/tmpfs (job_container_tmpfs.c of 22.05.8 and 24.11.5), namespace/tmpfs and
// namespace/linux (namespace_tmpfs.c and read_nsconf.c of 26.05.3).
package namespace

import (
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// File returns the configuration file, in slurm.conf's folder, of a plugin for NamespaceType or JobContainerType; "" =
// the plugin gives jobs no folders of their own.
func File(plugin string) string {
	switch {
	case strings.HasSuffix(plugin, "/linux"):
		return "namespace.yaml"
	case strings.HasSuffix(plugin, "/tmpfs"):
		return "job_container.conf"
	}
	return ""
}

var (
	hasDirs  = pattern.Lazy(`(?im)^[^#\n]*\bdirs\s*[:=]`)
	namesShm = pattern.Lazy(`(?m)^[^#\n]*/dev/shm\b`)
)

// HidesMemory reports whether a plugin's configuration file gives jobs their own /dev/shm: it names this folder, or
// names no folders, as before Slurm 23.02.
func HidesMemory(conf string) bool {
	return !hasDirs().MatchString(conf) || namesShm().MatchString(conf)
}
