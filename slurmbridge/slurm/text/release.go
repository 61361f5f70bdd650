package text

import (
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Release is a version of Slurm, e.g. 22.5.8; zeros where it can't be read.
type Release [3]int

// Oldest is the first release that the bridge works with.
var Oldest = Release{22, 5, 0}

// ParseRelease reads "22.05.8" or "23.11.0-rc1".
func ParseRelease(s string) Release {
	var r Release
	for i, part := range strings.SplitN(s, ".", len(r)) {
		r[i] = number(part)
	}
	return r
}

// Before reports whether r is older than other.
func (r Release) Before(other Release) bool { return slices.Compare(r[:], other[:]) < 0 }

// What releases print or take differently, where the text itself doesn't show which of them it is, are functions of the
// release. Otherwise the parsers take every form, regardless of the release:
//
//	GRES of a request  "gres:mps:50" to 23.02, "gres/mps:50" later
//	GRES of a job      "mps:60(IDX:0)", or shares used of each GPU "mps:60(60/100,0/100)"
//	errors of tasks    "22_2: …", "22_0-3: …", from 26.05 on "22_[2]: …", "22_[0-3]: …"
//	states             EXPEDITING, from 25.11 on, is of a job to be started again
//	exit code          the status of wait(2) "768", or exit code and signal "3:0"
//	settings           "Prolog" as one line, or "Prolog[0]", "Prolog[1]" …
//	control groups     "job_12", or from 26.05 on the job's SLUID; see prolog.InGroup
//
// SubmitLine, which scontrol prints of a job from 25.11 on, is a user's text like its name. What a
// node's GresUsed and a hook's SLURM_JOB_OVERSUBSCRIBE say has changed too; neither is read.
//
// squeue of some releases has no field for excluded nodes and says so when it is requested; see QueueParser.NoExcNodes.

// since reports whether a release is the given one or newer.
func since(release string, first Release) bool { return !ParseRelease(release).Before(first) }

// TypesChecked reports that a request for a whole GPU without a type no longer gets one with shares in use.
func TypesChecked(release string) bool { return since(release, Release{23, 2, 0}) }

// RewritesTypes reports that `scontrol update Gres=` turns gpu:shared into shares. Before, it merges the new request
// with the old one, and refuses or requests both.
func RewritesTypes(release string) bool { return since(release, Release{23, 2, 6}) }

// GivesUsedGPUs reports whether the release may give a job of a whole GPU one that a job with shares still uses: it
// takes a GPU for free when the first of the jobs with shares of it ends (SchedMD's bug 19110, mended in 23.11.5).
func GivesUsedGPUs(release string) bool { return !since(release, Release{23, 11, 5}) }

// MistakesGPUs reports whether the release takes GPUs in use by shares for free: before 25.05.0 backfill plans a job of
// a whole GPU onto one, fails to start it and keeps the node for it, so that no job behind it starts there, not even
// one without a GPU: its copies of a node's gres don't know which shares are parts of which GPU (SchedMD's ticket
// 22235).
func MistakesGPUs(release string) bool { return !since(release, Release{25, 5, 0}) }

// SharesInstances reports whether the release can share MIG instances, 100 shares each: from 23.02.7 on (Slurm's commit
// 4438cab1d8). 22.05.8 makes fewer of Count=700, and what asks for 60 waits for ever.
func SharesInstances(release string) bool { return since(release, Release{23, 2, 7}) }

// exclusiveField is squeue's field that shows which other jobs a job keeps off its nodes.
func exclusiveField(release string) string {
	if since(release, Release{26, 5, 0}) { // oversubscribe is NO for every job that doesn't request to be oversubscribed
		return "exclusive"
	}
	return "oversubscribe"
}

// IsOfPartitions reports whether a setting of the gate's partitions may make it look so.
func IsOfPartitions(m job.Misread) bool {
	return m.Field == "squeue's oversubscribe" || m.Field == "squeue's exclusive"
}

// parseExclusive reads a value of exclusiveField.
func parseExclusive(release string, value []byte) job.Exclusive {
	switch word := string(value); word {
	case "NODE", "USER", "MCS", "TOPO": // TOPO from 24.05 on
		return job.Exclusive(word)
	case "NO":
		if !since(release, Release{26, 5, 0}) {
			return job.WholeNodes
		}
	}
	return ""
}

// The bridge knows every field of the gate job, because it has submitted it. The gate's output therefore shows whether
// this Slurm prints what the bridge expects. Otherwise jobs would be misread silently: 26.05 prints OverSubscribe=NO
// for ordinary jobs, which until then meant that a job wants its node alone.

// gateSpan is the longest time from the gate's begin to its deadline: the time limit twice over
// where it was submitted, and less once it was renewed.
const gateSpan = 2*job.GateLimit + 10*time.Second

// misread is what a pending gate's row says, as the reader understands it, that isn't so.
func (p *QueueParser) misread(r *queueRow) []job.Misread {
	j := job.Job{State: job.Pending, Request: p.request(r)}
	var out []job.Misread
	check := func(ok bool, field string, says []byte, truth string) {
		if !ok {
			out = append(out, job.Misread{Field: "squeue's " + field, Says: string(says[:min(len(says), 40)]), Truth: truth})
		}
	}
	named := p.fill(&j, r)
	pf := &r.plain
	check(named && j.ArrayID == 0, plain[pTask], pf[pTask], "the gate is no array task")
	check(j.HetID == 0, plain[pHet], pf[pHet], "the gate is part of no heterogeneous job")
	check(j.User != "", plain[pUser], pf[pUser], "the gate has an owner")
	check(j.Partition != "", plain[pPartition], pf[pPartition], "the gate is in a partition")
	check(!j.Submit.IsZero(), plain[pSubmit], pf[pSubmit], "the gate was submitted")
	check(!j.Eligible.IsZero() && !j.Eligible.Before(j.Submit), plain[pEligible], pf[pEligible],
		"the gate has a begin time")
	check(j.TimeLimit == job.GateLimit, plain[pLimit], pf[pLimit], "the gate's limit is one minute")
	span := j.Deadline.Sub(j.Eligible)
	check(span > 0 && span <= gateSpan, plain[pDeadline], pf[pDeadline],
		"the gate's deadline is a minute or two after its begin time")
	check(j.NumNodes == 1, plain[pNodes], pf[pNodes], "the gate asks for one node")
	check(j.CPUs >= 1, plain[pCPUs], pf[pCPUs], "the gate asks for a CPU")
	check(!j.Requeue, plain[pRequeue], pf[pRequeue], "the gate asked not to be requeued")
	isApart := func(partition string) bool { return p.Apart[partition] }
	check(j.Exclusive == "" || slices.ContainsFunc(j.Partitions(), isApart), exclusiveField(p.Release), pf[pExclusive],
		"the gate doesn't keep others off its node")
	check(j.Nodes == "", plain[pNodeList], pf[pNodeList], "the gate waits")
	for i := fPerNode; i <= fPerTask; i++ {
		check(IsNone(string(r.free[i])), free[i], r.free[i], "the gate asks for no GPU")
	}
	return out
}
