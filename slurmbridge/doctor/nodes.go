package doctor

import (
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// computeModes: can several jobs have a process on each GPU?
func (e *exam) computeModes() {
	in := func(modes ...string) string {
		return nodesThat(e.gpus, func(n *text.Node) bool {
			return sharesOf(n) > 0 && slices.ContainsFunc(e.Agents[n.Name].Modes, func(m string) bool { return slices.Contains(modes, m) })
		})
	}
	fix := run("nvidia-smi -c DEFAULT   # on each of them, at every boot")
	closed, exclusive := in("prohibited"), in("exclusive_process", "exclusive_thread")
	e.when(closed != "", "compute-mode", Error, "GPUs of "+closed+" are in the compute mode PROHIBITED", "no job can compute on them", fix)
	e.when(exclusive != "", "compute-exclusive", Warning, "GPUs of "+exclusive+" are in the compute mode EXCLUSIVE_PROCESS",
		"MPS works there, and a job that shares without it fails: in a container or a namespace that hides the server, or beside a server that is full or has faulted; such a job runs again alone", fix)
}

// uncertain: do the hooks know which card each of Slurm's numbers means?
func (e *exam) uncertain() {
	nodes := nodesThat(e.gpus, func(n *text.Node) bool { return e.Agents[n.Name].Uncertain > 0 })
	e.when(nodes != "", "gpu-order", Warning, "which GPU Slurm means by a number isn't certain on "+nodes,
		"gres.conf names the GPUs' files in another order than NVML, and says AutoDetect as well, or names files that aren't there; jobs on such GPUs share without MPS, and have no records",
		e.gres("AutoDetect=nvml   # and no File= of GPUs; or AutoDetect=off, and File= in the order of nvidia-smi"))
}

// namespaces: jobs with a /dev/shm of their own don't reach the MPS server of their GPU. job_container/tmpfs gives each job
// one (job_container_tmpfs.c, read at 22.05.8 and 24.11.5; namespace_tmpfs.c and read_nsconf.c at 26.05.3), since 23.02
// only if Dirs has it, as its default does.
func (e *exam) namespaces() {
	plugin := e.Config["NamespaceType"]
	if plugin == "" {
		plugin = e.Config["JobContainerType"]
	}
	name, line := "job_container.conf", "Dirs=/tmp   # in place of each Dirs=: all folders but /dev/shm"
	switch {
	case strings.HasSuffix(plugin, "/linux"):
		name, line = "namespace.yaml", `dirs: "/tmp"   # in place of each dirs and dir_confs: all folders but /dev/shm`
	case !strings.HasSuffix(plugin, "/tmpfs"):
		return
	}
	const why = "each job then has a /dev/shm of its own, and its processes don't reach the MPS server of their GPU: jobs that share one take turns"
	if text.ParseRelease(e.Config["SLURM_VERSION"]).Before(text.Release{23, 2}) {
		e.add("private-memory", Error, plugin+" hides /dev/shm from jobs, always before Slurm 23.02", why,
			e.conf("JobContainerType=job_container/none   # or a newer Slurm, with Dirs=/tmp in job_container.conf"))
		return
	}
	if e.ConfDir == "" {
		return
	}
	fix := Fix{File: e.nextTo(name), Lines: []string{line}}
	if e.Namespaces == nil {
		e.add("private-memory", Warning, "whether "+plugin+" hides /dev/shm from jobs can't be seen from here: "+fix.File+" is not there", why, fix)
		return
	}
	e.when(hidesMemory(name, *e.Namespaces), "private-memory", Error, plugin+" hides /dev/shm from jobs", why, fix)
}

var dirs = regexp.MustCompile(`(?im)^[^#\n]*\bDirs\s*=\s*"?([^"\s]*)`)

// hidesMemory reports whether a configuration of namespaces gives jobs a /dev/shm of their own anywhere: where it says
// nothing it does.
func hidesMemory(name, conf string) bool {
	var lists []string
	if strings.HasSuffix(name, ".conf") {
		for _, m := range dirs.FindAllStringSubmatch(conf, -1) {
			lists = append(lists, m[1])
		}
	} else {
		var tree any
		if yaml.Unmarshal([]byte(conf), &tree) != nil {
			return true
		}
		lists = folders(tree, nil)
	}
	return len(lists) == 0 || slices.ContainsFunc(lists, func(l string) bool { return slices.Contains(strings.Split(l, ","), "/dev/shm") })
}

// folders are the lists of dirs, and the paths of dir_confs, anywhere in namespace.yaml.
func folders(tree any, found []string) []string {
	switch t := tree.(type) {
	case []any:
		for _, v := range t {
			found = folders(v, found)
		}
	case map[string]any:
		for k, v := range t {
			if s, ok := v.(string); ok && (k == "dirs" || k == "path") {
				found = append(found, s)
			}
			found = folders(v, found)
		}
	}
	return found
}
