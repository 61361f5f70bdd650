package job

import (
	"fmt"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// GroupKind says when a group starts.
type GroupKind string

// The kinds of group.
const (
	StartNow GroupKind = "start" // on an idle GPU, at once
	Join     GroupKind = "join"  // beside the jobs that run there, at once
	Next     GroupKind = "next"  // when the jobs that run there have ended
)

// GroupState is how far a group has come.
type GroupState string

// The states of a group.
const (
	Preparing GroupState = "preparing" // written down, its members may have been changed
	Released  GroupState = "released"  // Slurm may start it
	Started   GroupState = "started"   // at least one member runs
	Done      GroupState = "done"      // no member is left
)

// Member is one job of a group.
type Member struct {
	Ref    string `json:"ref"`
	User   string `json:"user"`
	App    string `json:"app,omitempty"`
	Shares int    `json:"shares"`
	// Was holds the values that the bridge replaced, to be put back.
	WasGres  string `json:"was_gres"`
	WasNodes string `json:"was_nodes"`
	// Predicted is the slowdown foreseen, 0 = none was asked for.
	Predicted float64 `json:"predicted,omitempty"`
	// Ran says that the member was seen running.
	Ran   bool      `json:"ran,omitempty"`
	Start time.Time `json:"start,omitzero"`
	// Undo says why the member is being made what it was before; it stays a
	// member until a look shows that it is. Tries counts the attempts.
	Undo  string `json:"undo,omitempty"`
	Tries int    `json:"tries,omitempty"`
	// Awaited says that some job waits for this one's end.
	Awaited bool `json:"awaited,omitempty"`
	// Alone: what it is made is an ordinary job with a GPU of its own.
	Alone bool `json:"alone,omitempty"`
	// Gone says why the member needs no more looking after: "ended", "cancelled",
	// "owner" (its owner edited it), "restored".
	Gone string `json:"gone,omitempty"`
}

// Group is some jobs that the bridge has start together on one GPU.
type Group struct {
	ID      int64      `json:"id"`
	Kind    GroupKind  `json:"kind"`
	State   GroupState `json:"state"`
	Node    string     `json:"node"`
	GPU     int        `json:"gpu"` // index on the node
	Members []Member   `json:"members"`
	// After lists the jobs whose end a Next group waits for.
	After []string `json:"after,omitempty"`
	// Pinned says that the members were bound to Node.
	Pinned  bool      `json:"pinned,omitempty"`
	Decided time.Time `json:"decided"`
	// Free is when the group could first have started: when it was released, or
	// when the last of After had ended.
	Free time.Time `json:"free,omitzero"`
	// Capped: a Next group was made while its jobs were at a limit of Slurm's; without
	// that they might have joined those who run.
	Capped bool `json:"capped,omitempty"`
	// Pushed: Slurm was told that a Next group's time has come.
	Pushed bool    `json:"pushed,omitempty"`
	Score  float64 `json:"score,omitempty"`
	// Policy that chose it.
	Policy string `json:"policy,omitempty"`
}

// Refs returns the members' names that still need looking after.
func (g *Group) Refs() []string {
	var out []string
	for i := range g.Members {
		if g.Members[i].Gone == "" {
			out = append(out, g.Members[i].Ref)
		}
	}
	return out
}

// Change is one update with its reason.
type Change struct {
	Update Update
	// Why is for people: the journal, `plan` and the log.
	Why string
	// Step is "gate", "prepare", "release", "restore" or "let-go".
	Step string
	// Was holds the replaced values by ref, as the look saw them.
	Was map[string]string
}

// Text is the change as `plan` prints it.
func (c *Change) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %s:", c.Step, strings.Join(c.Update.Jobs, ","))
	show := func(name string, v *string) {
		if v != nil {
			if *v == "" {
				fmt.Fprintf(&b, " %s=(none)", name)
			} else {
				fmt.Fprintf(&b, " %s=%s", name, *v)
			}
		}
	}
	show("Gres", c.Update.Gres)
	show("ReqNodeList", c.Update.ReqNodes)
	show("Dependency", c.Update.Dependency)
	if c.Update.StartNow {
		b.WriteString(" StartTime=now")
	}
	if c.Why != "" {
		fmt.Fprintf(&b, "  # %s", c.Why)
	}
	return b.String()
}

// Plan is what one look leads to, small enough to read.
type Plan struct {
	At time.Time
	// Repairs put right what no group accounts for: jobs to gate, to put back,
	// to let go. They come first.
	Repairs []Change
	// Groups to make, each with its own changes: prepare, then one release.
	Groups []PlannedGroup
	// Undone holds the members of waiting groups that go back behind the gate, by ref.
	Undone map[string]bool
	// Pushed holds the waiting groups whose time has come and that Slurm hasn't
	// started: one of Repairs makes it look at them.
	Pushed map[int64]bool
	// Passed counts, by ref, the decisions of this plan that went past a job.
	Passed map[string]int
	// Notes explains, by ref, what was considered.
	Explanations map[string]*Explanation
	// Broken counts the policy's answers that were not a number.
	Broken int
	// Idle holds the jobs left waiting beside an idle GPU they could have had.
	Idle map[string]bool
	// Limited says, by ref, which limit of Slurm's keeps a job from being tried now.
	Limited map[string]string

	State *rlcore.State // as the look showed it, before any decision
}

// PlannedGroup is a group and what makes it.
type PlannedGroup struct {
	Group   Group
	Changes []Change
	// leaves are the GPUs that members wait for until the first of Changes.
	Leaves []GPUAddr
}

// moves reports whether members wait for a GPU already.
func (g *PlannedGroup) Moves() bool { return len(g.Leaves) > 0 }

// prepares are the changes before the release.
func (g *PlannedGroup) Prepares() []Change { return g.Changes[:len(g.Changes)-1] }

// release is the change that lets the group go.
func (g *PlannedGroup) Release() *Change { return &g.Changes[len(g.Changes)-1] }

// Empty reports whether the plan changes nothing.
func (p *Plan) Empty() bool { return len(p.Repairs) == 0 && len(p.Groups) == 0 }

// Changes returns every change in the order it is applied in.
func (p *Plan) Changes() []Change {
	out := append([]Change(nil), p.Repairs...)
	for i := range p.Groups {
		if g := &p.Groups[i]; g.Moves() {
			out = append(out, g.Prepares()...)
		}
	}
	for i := range p.Groups {
		g := &p.Groups[i]
		if !g.Moves() {
			out = append(out, g.Prepares()...)
		}
		out = append(out, *g.Release())
	}
	return out
}

// Note is what one plan has to say about one job: `why` prints it.
type Explanation struct {
	At     time.Time `json:"at"`
	Ref    string    `json:"ref"`
	App    string    `json:"app,omitempty"`
	Known  bool      `json:"known"` // the application has a profile
	Status string    `json:"status"`
	// Considered holds the best combinations with the job that were allowed.
	Considered []Considered `json:"considered,omitempty"`
	// Refused holds the first combinations with the job that the guard did not allow.
	Refused []Refusal `json:"refused,omitempty"`
	// LatestDelayS is how much longer the bridge alone may keep the job waiting, s.
	LatestDelayS float64 `json:"latest_delay_s"`
	PassedOver   int     `json:"passed_over"`
	// FreeInS is in how long the first of the GPUs that were considered for it is
	// expected to be empty, s; negative = not known.
	FreeInS float64 `json:"free_in_s"`
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

// place is a GPU of a node.
type GPUAddr struct {
	Node string
	GPU  int
}

// Mode says whether plans are applied.
type Mode string

// The modes.
const (
	Active Mode = "active"
	Shadow Mode = "shadow" // decide and record, change nothing
)
