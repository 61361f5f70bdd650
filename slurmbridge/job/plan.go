package job

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

// Step is the purpose of a change.
type Step string

// The steps.
const (
	StepGate    Step = "gate"    // a job that asks for gpu:shared goes behind the gate
	StepPrepare Step = "prepare" // a member gets its shares and its node
	StepRelease Step = "release" // the members of a group may start
	StepRestore Step = "restore" // a member gets back what it had
	StepUngate  Step = "let-go"  // a job becomes an ordinary one
	StepExtend  Step = "extend"  // a running job gets the time that sharing cost it
	StepComment Step = "comment" // a job's AdminComment says what became of it
)

// Change is one update with its reason.
type Change struct {
	Update Update
	// Why is the reason in words, for the journal, `plan` and the log.
	Why  string
	Step Step
	// Was holds the replaced values by ref, as the poll showed them.
	Was map[string]string
}

// Text returns the change as `plan` prints it, without the text of an AdminComment.
func (c *Change) Text() string {
	u := c.Update
	u.AdminComment = nil
	text := fmt.Sprintf("%-8s %s:", c.Step, strings.Join(u.Jobs, ","))
	for _, word := range u.Words() {
		if text += " " + word; strings.HasSuffix(word, "=") {
			text += "(none)"
		}
	}
	if c.Why != "" {
		text += "  # " + c.Why
	}
	return text
}

// Plan is the outcome of one poll: what to change, and why.
type Plan struct {
	At time.Time
	// Repairs concern jobs outside the planned groups: to gate, to restore, to ungate. They are applied first.
	Repairs []Change
	// Groups to make, each with its own changes.
	Groups []PlannedGroup
	// Order holds the place, by ref, of members that start now on nodes with several GPUs: the groups that start on one of
	// these are released with one update, which names their members in the order in which Slurm considers them.
	Order map[string]int
	// Explanations holds, by ref, the combinations that were considered.
	Explanations map[string]*Explanation
	// Broken counts the policy's answers that were not a number.
	Broken int
	// Idle holds the jobs left waiting although a GPU that they may use is idle.
	Idle map[string]bool
	// PassedOver holds the released jobs that Slurm won't start where they were sent: it keeps the node for another job.
	PassedOver map[string]bool
	// Unstarted holds jobs that are not the bridge's and that Slurm leaves pending although as many GPUs are idle as
	// they take.
	Unstarted map[string]bool
	// Ungated says, by ref, why jobs are ungated; InCompany holds the jobs that were considered
	// together with others, or next to running ones.
	Ungated   map[string]Ungated
	InCompany map[string]bool
	// NotAdopted says, by ref, why jobs that the site's rules match have a GPU of their own.
	NotAdopted map[string]Ungated
	// Limited says, by ref, which of Slurm's limits keeps a job from being tried now.
	Limited map[string]string
	// Starts says, by ref, the latest expected start of the waiting jobs in the part of the queue that is followed.
	Starts map[string]time.Time

	// Plain is plain Slurm's schedule as of the poll, nil = as it was.
	Plain *schedule.SlurmAlone
	// Running is the cluster as the poll showed it, before any decision; Pending is empty.
	Running *rlcore.State
}

// Published returns a copy for the status, with groups that later changes don't touch.
func (p *Plan) Published() *Plan {
	out := *p
	out.Groups = slices.Clone(p.Groups)
	for i := range out.Groups {
		out.Groups[i].Group = p.Groups[i].Group.Clone()
	}
	return &out
}

// PlannedGroup is a group with the changes that make it.
type PlannedGroup struct {
	Group Group
	// Prepare gives members their shares and their node while the gate keeps them.
	Prepare []Change
	// Release lets the members start, with one change for all.
	Release Change
}

// Changes returns every change in the order it is applied in.
func (p *Plan) Changes() []Change {
	out := append([]Change(nil), p.Repairs...)
	for i := range p.Groups {
		out = append(append(out, p.Groups[i].Prepare...), p.Groups[i].Release)
	}
	return out
}

// Explanation is one plan's account of one job; `why` prints it.
type Explanation struct {
	At    time.Time `json:"at"`
	Ref   string    `json:"ref"`
	App   string    `json:"app,omitempty"`
	Known bool      `json:"known"` // the application has a profile
	// AskedMiB is the device memory that the owner says the job needs, MiB: a job without a profile shares by it; 0 = not
	// said.
	AskedMiB float64 `json:"asked_mib,omitempty"`
	// Preallocates: the job allocates the card's memory at its start; see rlcore.Profile.Preallocating.
	Preallocates bool `json:"preallocates,omitempty"`

	Status string `json:"status"`
	// Considered holds the best combinations with the job that were allowed.
	Considered []Considered `json:"considered,omitempty"`
	// Vetoes holds the first combinations with the job that the guard did not allow.
	Vetoes []Veto `json:"refused,omitempty"`
	// SoleVetoes holds the vetoes that alone kept the job, first in its window, off a GPU with room that then got no job;
	// see rlcore.Decision.SoleVeto.
	SoleVetoes []rlcore.Veto `json:"-"`
	// LatestDelayS is how many seconds longer the bridge alone may keep the job waiting.
	LatestDelayS float64 `json:"latest_delay_s"`
	// FreeInS is in how many seconds the first of the GPUs considered for it is expected
	// to be empty; negative = not known.
	FreeInS float64 `json:"free_in_s"`
	// PlainEnd is when plain Slurm, with whole GPUs in order of priority, would have ended the job,
	// and ExpectedEnd when it is expected to end as things are; zero = not known. Of a job of
	// unknown length both are as if it took its whole time limit.
	PlainEnd    time.Time `json:"plain_end,omitzero"`
	ExpectedEnd time.Time `json:"expected_end,omitzero"`
	// Ignored holds a sentence for each term of its comment that makes no sense.
	Ignored []string `json:"ignored,omitempty"`
}

// Considered is one combination that a decision valued.
type Considered struct {
	Jobs  []string `json:"jobs"`
	Node  string   `json:"node"`
	GPU   int      `json:"gpu"`
	Value float64  `json:"value"`
	Taken bool     `json:"taken,omitempty"`
	// Slowdown is each job's predicted slowdown, in Jobs' order.
	Slowdown []float64 `json:"slowdown,omitempty"`
}

// String returns the combination with its value and slowdowns.
func (c Considered) String() string {
	text := fmt.Sprintf("%s %s: value %.3g", strings.Join(c.Jobs, " + "), GPUAddr{c.Node, c.GPU}.On(), c.Value)
	separator := ", slowdown "
	for _, slowdown := range c.Slowdown {
		text += fmt.Sprintf("%s%.2f", separator, slowdown)
		separator = " / "
	}
	return text
}

// GPUAddr names a GPU: a node and the index there, in the order of gres.conf.
type GPUAddr struct {
	Node string
	GPU  int
}

// On names the GPU in words: "on n1 gpu 0".
func (a GPUAddr) On() string { return fmt.Sprintf("on %s gpu %d", a.Node, a.GPU) }

// Mode says whether plans are applied.
type Mode string

// The modes.
const (
	Active Mode = "active"
	Shadow Mode = "shadow" // decide and record, change nothing
)

// Veto is one combination with a job that the guard did not allow, and why.
type Veto struct {
	With   []string // the other waiting jobs, by ref; none = alone, or with the jobs that run there
	Node   string
	GPU    int
	Reason rlcore.Veto
	// text is a veto read from JSON, which holds the sentence only.
	text string
}

// String renders the refusal for `why`, the status page and JSON.
func (r Veto) String() string {
	if r.text != "" {
		return r.text
	}
	company := "alone or joining"
	if len(r.With) > 0 {
		company = "with " + strings.Join(r.With, ", ")
	}
	return fmt.Sprintf("%s %s: %s", company, GPUAddr{r.Node, r.GPU}.On(), r.Reason)
}

// MarshalText makes JSON hold the sentence, as `why --json` documents it.
func (r Veto) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText keeps the sentence unparsed.
func (r *Veto) UnmarshalText(text []byte) error {
	*r = Veto{text: string(text)}
	return nil
}
