// Package namespace reads whether Slurm gives each job a /dev/shm of its own, where its processes don't reach their
// GPU's MPS server: job_container/tmpfs (job_container_tmpfs.c, read at 22.05.8 and 24.11.5), namespace/tmpfs and
// namespace/linux (namespace_tmpfs.c and read_nsconf.c at 26.05.3).
package namespace

import (
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/pattern"
)

// File is the file next to slurm.conf that configures the plugin which slurm.conf names as NamespaceType or
// JobContainerType; "" = the plugin leaves jobs the node's folders.
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

// HidesMemory reports whether such a file gives jobs a /dev/shm of their own anywhere: where it names that folder, and
// where it names none, as before Slurm 23.02, when it couldn't.
func HidesMemory(conf string) bool {
	return !hasDirs().MatchString(conf) || namesShm().MatchString(conf)
}
