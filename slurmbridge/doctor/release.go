package doctor

import (
	"fmt"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// newest is the newest release that the tests have run on. They run on 22.05, 24.11 and 26.05.
var newest = text.Release{26, 5, 0}

// faulty are releases with a fault that jobs which share suffer from, up to the release that
// mends it. Source: Slurm's release notes.
var faulty = []struct {
	from, mended text.Release
	severity     Severity
	what, why    string
}{
	{
		text.Release{25, 5, 0},
		text.Release{25, 5, 1},
		Error,
		"Slurm 25.05.0 may give the same GPU, or the same shares of one, to several jobs",
		"jobs then meet that were never checked with each other; 25.05.1 mends it",
	},
	{
		text.Release{25, 11, 0},
		text.Release{25, 11, 4},
		Warning,
		"Slurm 25.11 before 25.11.4 may miss the end of a prolog or epilog",
		"the job then stays completing and keeps its GPU's shares; 25.11.4 mends it",
	},
}

// version: is this a release that the bridge works with, and one to run?
func (e *exam) version() {
	said := e.Config["SLURM_VERSION"]
	is := text.ParseRelease(said)
	if is.Before(text.Oldest) {
		e.add("release", Error, "Slurm "+said+" is older than 22.05",
			"gates with a deadline and shares of a GPU were proven from 22.05 on")
	}
	for _, f := range faulty {
		if !is.Before(f.from) && is.Before(f.mended) {
			e.add("release-fault", f.severity, f.what, f.why)
		}
	}
	if newest.Before(text.Release{is[0], is[1]}) {
		e.add("release-new", Note, "Slurm "+said+" is newer than the releases that slurmbridge was tried on (22.05, 24.11, 26.05)",
			"the bridge compares what Slurm says of its gate with what is so, and leaves every job alone where that differs; begin with mode: shadow")
	}
}

// gpuAccounting: from 25.11 on slurmd gathers what jobs use of GPUs by itself, and counts what
// sharers use together as each one's.
func (e *exam) gpuAccounting() {
	const off = "DisableGPUAcct"
	params, kind := e.Config["JobAcctGatherParams"], e.Config["JobAcctGatherType"]
	if text.ParseRelease(e.Config["SLURM_VERSION"]).Before(text.Release{25, 11, 0}) || kind == "" || strings.HasSuffix(kind, "/none") || text.HasOption(params, off) {
		return
	}
	if params != "" {
		params += ","
	}
	e.add("gpu-accounting", Note, "slurmd counts what jobs use of a GPU by itself",
		"of jobs that share one it can't tell them apart; the nodes' agents do",
		e.conf(fmt.Sprintf("JobAcctGatherParams=%s%s", params, off)))
}
