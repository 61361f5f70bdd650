package job

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// noRoom words vetoes for a job's owner: why no GPU takes the job beside others. A veto without an entry keeps its own
// words.
var noRoom = map[rlcore.Veto]string{
	rlcore.VetoWhole:    "all are taken",
	rlcore.VetoShares:   "all are full",
	rlcore.VetoUser:     "other users' jobs are on those in use",
	rlcore.VetoUnknown:  "its application is new here and needs one to itself for its first run",
	rlcore.VetoFirstRun: "those in use have a first run, which is alone so that its application becomes known",
	rlcore.VetoMemory:   "those in use lack memory for it",
	rlcore.VetoContract: "beside the jobs that run, it or one of them would be slowed by more than is allowed",
}

// Waits says why the job waits for a GPU: by the veto that most of the considered GPUs have, or because of other jobs.
func (e *Explanation) Waits() string {
	const text = "waits for a GPU: "
	if len(e.Considered) > 0 {
		return text + "other jobs come first"
	}
	var most rlcore.Veto
	n := map[rlcore.Veto]int{}
	for _, r := range e.Vetoes {
		if len(r.With) == 0 {
			if n[r.Reason]++; n[r.Reason] > n[most] {
				most = r.Reason
			}
		}
	}
	if most == rlcore.Allowed {
		return text + "other jobs come first"
	}
	return text + cmp.Or(noRoom[most], most.String())
}

// Summary says in one sentence what a job waits for, by its position in the queue and its explanation. Either may be
// nil.
func Summary(ref string, p *QueuePosition, e *Explanation) string {
	text := "waits for a decision"
	if e != nil {
		text = e.Status
	}
	if p != nil {
		switch {
		case p.NotAdopted != "":
			return "Job " + ref + " is left as it is: " + p.NotAdopted + "."
		case p.Holds != "":
			text = "waits for " + p.Holds + ", as it would without slurmbridge"
		case p.Position > p.Window:
			text = "waits for its turn: " + Count(p.Position-1, "job") + " are ahead of it"
		}
		if !p.ExpectedStart.IsZero() {
			text += ". It should start by " + p.ExpectedStart.Local().Format(time.DateTime)
		}
	}
	return "Job " + ref + " " + strings.TrimSuffix(text, ".") + "."
}

// Place is where a job runs, by the last poll.
type Place struct {
	Node string `json:"node"`
	GPUs []int  `json:"gpus,omitempty"`
	// With are the other jobs on these GPUs.
	With []string `json:"with,omitempty"`
}

// PlaceOf returns where a job runs, nil if it doesn't run.
func (s *Snapshot) PlaceOf(ref string) *Place {
	i := slices.IndexFunc(s.Jobs, func(j Job) bool { return j.Ref == ref && j.State != Pending && j.Nodes != "" })
	if i < 0 {
		return nil
	}
	p := &Place{Node: s.Jobs[i].Nodes, GPUs: s.Jobs[i].GPUs}
	for k := range s.Jobs {
		j := &s.Jobs[k]
		on := func(gpu int) bool { return slices.Contains(p.GPUs, gpu) }
		has, _ := j.GPUsOn(p.Node)
		if k != i && j.State != Pending && slices.ContainsFunc(has, on) {
			p.With = append(p.With, j.Ref)
		}
	}
	return p
}

// Sentence describes where job ref runs; predicted is its slowdown there, 0 = not known.
func (p *Place) Sentence(ref string, predicted float64) string {
	text := "Job " + ref + " runs on " + p.Node
	if len(p.GPUs) == 1 {
		text = "Job " + ref + " runs " + GPUAddr{p.Node, p.GPUs[0]}.On()
	}
	if len(p.With) == 0 {
		text += ", alone"
	} else {
		text += " together with " + strings.Join(p.With, ", ")
	}
	if predicted > 1.005 {
		text += fmt.Sprintf(", and should take %.2f times as long as alone", predicted)
	}
	return text + "."
}
