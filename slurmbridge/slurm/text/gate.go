package text

import (
	"bytes"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// The bridge knows every field of the gate job, because it has submitted it. The gate's output
// therefore shows whether this Slurm prints what the bridge expects. Otherwise jobs would be
// misread silently: 26.05 prints OverSubscribe=NO for ordinary jobs, which until then meant that a
// job wants its node alone.

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
	check(!j.Eligible.IsZero() && !j.Eligible.Before(j.Submit), plain[pEligible], pf[pEligible], "the gate has a begin time")
	check(j.TimeLimit == job.GateLimit, plain[pLimit], pf[pLimit], "the gate's limit is one minute")
	span := j.Deadline.Sub(j.Eligible)
	check(span > 0 && span <= gateSpan, plain[pDeadline], pf[pDeadline], "the gate's deadline is a minute or two after its begin time")
	check(j.NumNodes == 1, plain[pNodes], pf[pNodes], "the gate asks for one node")
	check(j.CPUs >= 1, plain[pCPUs], pf[pCPUs], "the gate asks for a CPU")
	check(!j.Requeue, plain[pRequeue], pf[pRequeue], "the gate asked not to be requeued")
	check(!j.Exclusive, p.form().exclusiveField, pf[pExclusive], "the gate doesn't keep others off its node")
	check(j.Nodes == "", plain[pNodeList], pf[pNodeList], "the gate waits")
	for i := fPerNode; i <= fPerTask; i++ {
		check(IsNone(string(r.free[i])), free[i], r.free[i], "the gate asks for no GPU")
	}
	return out
}

// GateEnded reports whether scontrol show job says that a gate has ended, in one of the ways in
// which it can.
func GateEnded(out []byte) bool {
	return bytes.Contains(out, []byte("JobState=CANCELLED")) || bytes.Contains(out, []byte("JobState=DEADLINE"))
}

// MisreadGate is what scontrol show job says of a pending gate that isn't so.
func MisreadGate(out []byte) []job.Misread {
	says := map[string]string{}
	for _, word := range strings.Fields(string(bytes.ToValidUTF8(out, nil))) {
		if k, v, ok := strings.Cut(word, "="); ok && says[k] == "" {
			says[k] = v
		}
	}
	var bad []job.Misread
	for _, f := range []struct{ field, want, truth string }{
		{"JobState", "PENDING", "the gate waits"},
		{"TimeLimit", "00:01:00", "the gate's limit is one minute"},
		{"Dependency", "(null)", "the gate depends on nothing"},
		{"Requeue", "0", "the gate asked not to be requeued"},
	} {
		if v := says[f.field]; v != f.want {
			bad = append(bad, job.Misread{Field: "scontrol's " + f.field, Says: v[:min(len(v), 40)], Truth: f.truth})
		}
	}
	if v := says["Comment"]; !isGateComment(v) {
		bad = append(bad, job.Misread{Field: "scontrol's Comment", Says: v[:min(len(v), 40)], Truth: "the gate has its name for a comment"})
	}
	return bad
}

func isGateComment(text string) bool {
	_, ok := job.GateOwner(text)
	return ok
}
