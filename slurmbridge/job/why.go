package job

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// noRoom says for owners why no GPU takes their job beside those that run there; without an entry the guard's own words do.
var noRoom = map[rlcore.Refusal]string{
	rlcore.RefusedWhole:    "all are taken",
	rlcore.RefusedShares:   "all are full",
	rlcore.RefusedUser:     "other users' jobs are on those in use",
	rlcore.RefusedUnknown:  "its application is new here and needs one to itself for its first run",
	rlcore.RefusedMemory:   "those in use lack memory for it",
	rlcore.RefusedContract: "beside the jobs that run, it or one of them would be slowed by more than is allowed",
}

// Waits says why the job waits for a GPU, in words for its owner: what most of the GPUs considered lack, if they were
// considered for it and none would have done.
func (e *Explanation) Waits() string {
	const text = "waits for a GPU: "
	if len(e.Considered) > 0 {
		return text + "other jobs come first"
	}
	var most rlcore.Refusal
	n := map[rlcore.Refusal]int{}
	for _, r := range e.Refused {
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

// Summary says in one sentence what the job is doing that the position and the explanation, either of which may be nil, are of.
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

// Sharing says in one sentence where a job of a group runs, or is about to, and with whom.
func (g *Group) Sharing(ref string) string {
	var with []string
	text := "is about to start"
	slower := ""
	for i := range g.Members {
		m := &g.Members[i]
		switch {
		case m.Ref != ref:
			if !m.State.Final() {
				with = append(with, m.Ref)
			}
			continue
		case m.Ran():
			text = "runs"
		case g.Node == "":
			return "Job " + ref + " waits for its turn among the jobs of whole GPUs."
		}
		if m.Predicted > 1.005 {
			slower = fmt.Sprintf(", and should take %.2f times as long as alone", m.Predicted)
		}
	}
	company := " alone"
	if len(with) > 0 {
		company = " together with " + strings.Join(with, ", ")
	}
	return "Job " + ref + " " + text + " " + g.Where() + company + slower + "."
}
