package doctor

import (
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// sharedGres: how Slurm chooses a GPU for a request for shares, where a node has several.
func (e *exam) sharedGres() {
	params := e.Config["SelectTypeParameters"]
	if text.HasOption(params, "MULTIPLE_SHARING_GRES_PJ") {
		e.add("multiple-sharing", Error, "SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ",
			"Slurm may then make up one job's shares of parts of several GPUs, next to jobs on each of them that it was never checked with",
			e.conf("SelectTypeParameters="+without(params, "MULTIPLE_SHARING_GRES_PJ")))
	}
	if e.severalGPUs() && text.HasOption(params, "LL_SHARED_GRES") {
		e.add("least-loaded", Warning, "SelectTypeParameters has LL_SHARED_GRES",
			"of a node's GPUs Slurm then takes the least loaded, so while several are idle no group can be put on one of them: "+
				"jobs start alone until one GPU is left, and the remaining GPUs are shared only as they become free",
			e.conf("SelectTypeParameters="+without(params, "LL_SHARED_GRES")))
	}
}

// without is a comma-separated list without a word.
func without(list, word string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(list, ","), func(w string) bool { return strings.EqualFold(strings.TrimSpace(w), word) }), ",")
}

// severalGPUs reports whether a node has more than one GPU.
func (e *exam) severalGPUs() bool {
	return slices.ContainsFunc(e.gpuNodes(), func(n *text.Node) bool { return n.GPUCount() > 1 })
}
