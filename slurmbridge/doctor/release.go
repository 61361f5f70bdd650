package doctor

import (
	"fmt"
	"slices"
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

// usedGPUs: releases that may give a job of a whole GPU one that is shared.
func (e *exam) usedGPUs() {
	said := e.Config["SLURM_VERSION"]
	if e.Settings == nil || said == "" || !text.GivesUsedGPUs(said) {
		return
	}
	var mixed, all []string
	for _, n := range e.gpuNodes() {
		if n.Shares[e.sharing] == 0 {
			continue
		}
		for _, p := range n.Partitions {
			if p == e.Settings.GatePartition {
				continue
			}
			all = append(all, p)
			if !slices.Contains(e.Settings.SharersOnly, p) {
				mixed = append(mixed, p)
			}
		}
	}
	if slices.Sort(mixed); len(mixed) == 0 {
		return
	}
	slices.Sort(all)
	mixed, all = slices.Compact(mixed), slices.Compact(all)
	e.add("used-gpus", Error, "Slurm "+said+" may give a job of a whole GPU one that a job with shares still uses, in partition "+strings.Join(mixed, ", "),
		"it takes a GPU for free when the first of its sharers ends (SchedMD's bug 19110, mended in 23.11.5), so on nodes of such partitions the bridge lets no jobs share. "+
			"Where one GPU a job is enough, sharers_only makes job_submit.lua hand out only shares there: a request for one GPU becomes all of its shares, one for more is refused. Else move nodes to a partition of their own, or upgrade",
		Fix{File: settingsFile, Lines: []string{"sharers_only: [" + strings.Join(all, ", ") + "]"}})
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
