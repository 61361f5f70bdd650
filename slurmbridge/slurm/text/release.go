package text

import (
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Release is a version of Slurm, e.g. 22.5.8; unreadable parts are 0.
type Release [3]int

// Oldest is the oldest supported release.
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

// Releases print or accept some things differently. If the text doesn't show which form it has, a function of the
// release below decides. Otherwise the parsers accept all forms, whatever the release:
//
//	GRES of a request  "gres:mps:50" to 23.02, "gres/mps:50" later
//	GRES of a job      "mps:60(IDX:0)", or shares used of each GPU "mps:60(60/100,0/100)"
//	errors of tasks    "22_2: …", "22_0-3: …", from 26.05 on "22_[2]: …", "22_[0-3]: …"
//	states             EXPEDITING, from 25.11 on: the job will be started again
//	exit code          the status of wait(2) "768", or exit code and signal "3:0"
//	settings           "Prolog" as one line, or "Prolog[0]", "Prolog[1]" …
//	control groups     "job_12", or from 26.05 on the job's SLUID; see prolog.InGroup
//
// SubmitLine, which scontrol prints for a job from 25.11 on, is a user's text like the job's name. A node's GresUsed
// and a hook's SLURM_JOB_OVERSUBSCRIBE have changed as well; nothing reads them.
//
// squeue of some releases has no field for excluded nodes and reports an error; see QueueParser.NoExcNodes.

// since reports whether a release is first or newer.
func since(release string, first Release) bool { return !ParseRelease(release).Before(first) }

// TypesChecked reports whether Slurm keeps whole-GPU jobs without a type off GPUs with shares in use.
func TypesChecked(release string) bool { return since(release, Release{23, 2, 0}) }

// RewritesTypes reports whether `scontrol update Gres=` can replace gpu:shared by shares. Older releases merge the new
// request with the old one, and refuse the update or request both.
func RewritesTypes(release string) bool { return since(release, Release{23, 2, 6}) }

// GivesUsedGPUs reports whether Slurm may give a whole-GPU job a GPU that a job with shares still uses: it considers a
// GPU free when the first of its jobs with shares ends (SchedMD's bug 19110, fixed in 23.11.5).
func GivesUsedGPUs(release string) bool { return !since(release, Release{23, 11, 5}) }

// MistakesGPUs reports whether backfill mistakes GPUs in use by shares for free ones: it plans a whole-GPU job on such
// a GPU, fails to start it and keeps the node for it, so no job behind it starts there, not even one without a GPU. Its
// copies of a node's gres don't record which shares belong to which GPU (SchedMD's ticket 22235, fixed in 25.05.0).
func MistakesGPUs(release string) bool { return !since(release, Release{25, 5, 0}) }

// SharesInstances reports whether Slurm can share MIG instances, with 100 shares each (Slurm's commit 4438cab1d8, in
// 23.02.7). 22.05.8 gives seven instances fewer shares than Count=700, and a job that requests 60 waits for ever.
func SharesInstances(release string) bool { return since(release, Release{23, 2, 7}) }

// exclusiveField is squeue's field for the other jobs that a job keeps off its nodes.
func exclusiveField(release string) string {
	if since(release, Release{26, 5, 0}) { // oversubscribe is NO for every job that doesn't request to be oversubscribed
		return "exclusive"
	}
	return "oversubscribe"
}

// IsOfPartitions reports whether a setting of the gate's partitions may be the cause of a misread field.
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

// The bridge submits the gate and so knows each of its fields. The gate's row therefore shows whether this Slurm prints
// what the parser expects. Otherwise jobs would be misread silently: 26.05 prints OverSubscribe=NO for ordinary jobs,
// and until then this meant that a job wants its nodes alone.

// gateSpan is the longest time from the gate's begin to its deadline: twice the time limit at submission.
const gateSpan = 2*job.GateLimit + 10*time.Second

// misread returns the fields of a pending gate's row that differ from what the bridge submitted.
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
	check(named && j.ArrayID == 0, plain[pTask], pf[pTask], "the gate is not an array task")
	check(j.HetID == 0, plain[pHet], pf[pHet], "the gate is not part of a heterogeneous job")
	check(j.User != "", plain[pUser], pf[pUser], "the gate has an owner")
	check(j.Partition != "", plain[pPartition], pf[pPartition], "the gate is in a partition")
	check(!j.Submit.IsZero(), plain[pSubmit], pf[pSubmit], "the gate was submitted")
	check(!j.Eligible.IsZero() && !j.Eligible.Before(j.Submit), plain[pEligible], pf[pEligible],
		"the gate has a begin time")
	check(j.TimeLimit == job.GateLimit, plain[pLimit], pf[pLimit], "the gate's time limit is one minute")
	span := j.Deadline.Sub(j.Eligible)
	check(span > 0 && span <= gateSpan, plain[pDeadline], pf[pDeadline],
		"the gate's deadline is a minute or two after its begin time")
	check(j.NumNodes == 1, plain[pNodes], pf[pNodes], "the gate requests one node")
	check(j.CPUs >= 1, plain[pCPUs], pf[pCPUs], "the gate requests a CPU")
	check(!j.Requeue, plain[pRequeue], pf[pRequeue], "the gate was submitted with --no-requeue")
	isApart := func(partition string) bool { return p.Apart[partition] }
	check(j.Exclusive == "" || slices.ContainsFunc(j.Partitions(), isApart), exclusiveField(p.Release), pf[pExclusive],
		"the gate doesn't keep other jobs off its node")
	check(j.Nodes == "", plain[pNodeList], pf[pNodeList], "the gate is pending and has no node")
	for i := fPerNode; i <= fPerTask; i++ {
		check(IsNone(string(r.free[i])), free[i], r.free[i], "the gate requests no GPU")
	}
	return out
}
