package job

import (
	"fmt"
	"slices"
	"time"
)

// Member is one job of a group.
type Member struct {
	Ref    string `json:"ref"`
	User   string `json:"user"`
	App    string `json:"app,omitempty"`
	Shares int    `json:"shares"`
	// GPUType is the type of the GPU whose shares the job requests, "" = any; see Node.Typed.
	GPUType string `json:"gpu_type,omitempty"`
	// MemMiB is the limit on the job's device memory where MPS can enforce one, MiB; 0 = none.
	MemMiB int64 `json:"mem_mib,omitempty"`
	// ProcessMiB is the limit for each process of a job with several; 0 = it has one.
	ProcessMiB int64 `json:"process_mib,omitempty"`
	// Tried: the job runs alone with MemMiB, to show how much memory its application needs.
	Tried bool `json:"tried,omitempty"`
	// First: this is its application's first run under MPS, and it runs alone.
	First bool `json:"first,omitempty"`
	// OwnLimit is the job's time limit before the bridge raised it, 0 = the bridge didn't.
	OwnLimit time.Duration `json:"own_limit,omitempty"`
	// WasGres and WasNodes are the values that the bridge replaced and restores.
	WasGres  string `json:"was_gres"`
	WasNodes string `json:"was_nodes"`
	// Sharing is set for an adopted job, whose WasGres names whole GPUs: the kind of its shares. Rule is the site's rule
	// that adopted it, Contract the slowdown and Grace the delay that the rule allows.
	Sharing  Sharing `json:"sharing,omitempty"`
	Rule     string  `json:"rule,omitempty"`
	Contract float64 `json:"contract,omitempty"`
	Grace    float64 `json:"grace,omitempty"`
	// Host is the member's part of its default cores and memory, WasHost all of them; 0 = its owner requested them.
	Host    Defaults `json:"host,omitzero"`
	WasHost Defaults `json:"was_host,omitzero"`
	// Predicted is the slowdown predicted when the group was decided, 0 = none was.
	Predicted float64 `json:"predicted,omitempty"`
	// PlainEnd is when plain Slurm would have ended the job and ExpectedEnd when it was
	// expected to end, when the group was decided; zero = not known.
	PlainEnd    time.Time `json:"plain_end,omitzero"`
	ExpectedEnd time.Time `json:"expected_end,omitzero"`
	// State is changed by package release alone.
	State MemberState `json:"state,omitempty"`
	// Start is when the member first ran, zero = it was never seen running.
	Start time.Time `json:"start,omitzero"`
	// Misplaced: a poll showed the member on another GPU of its node than the planned one.
	Misplaced bool `json:"misplaced,omitempty"`
	// Cause says why the member is being restored; Tries counts the attempts to restore it or to hand it back.
	Cause Cause `json:"cause,omitzero"`
	Tries int   `json:"tries,omitempty"`
	// Awaited: another job waits for this one's end.
	Awaited bool `json:"awaited,omitempty"`
	// Alone: the member is restored so that it runs with a GPU of its own.
	Alone bool `json:"alone,omitempty"`
}

// MemberState is a stage in the life of a group's member. Package release has the table of allowed transitions.
type MemberState string

// The states of a member. The last five are final; their values are what the journal and `why` print.
const (
	// MemberPrepared: the group is in the journal and the job may have been changed.
	MemberPrepared MemberState = "prepared"
	// MemberWaiting: released, so that Slurm may start it.
	MemberWaiting MemberState = "waiting"
	// MemberRunning: seen running.
	MemberRunning MemberState = "running"
	// MemberRestoring: the bridge writes back what it replaced, until a poll shows the old values.
	MemberRestoring MemberState = "restoring"
	// MemberHandingBack: the owner edited the job; the bridge restores the fields that the owner left alone.
	MemberHandingBack MemberState = "handing-back"

	MemberEnded     MemberState = "ended"
	MemberCancelled MemberState = "cancelled" // or it started and ended between two polls
	MemberEdited    MemberState = "owner"     // it is its owner's again
	MemberRestored  MemberState = "restored"
	MemberMoved     MemberState = "moved" // a later group has it
)

// Final reports whether the bridge is done with a member in this state.
func (s MemberState) Final() bool {
	switch s {
	case MemberEnded, MemberCancelled, MemberEdited, MemberRestored, MemberMoved:
		return true
	}
	return false
}

// Pending reports whether a member in this state is on its way to a GPU.
func (s MemberState) Pending() bool {
	return s == MemberPrepared || s == MemberWaiting || s == MemberHandingBack
}

// Ran reports whether a poll showed the member running. In a damaged journal a running member may lack a start.
func (m *Member) Ran() bool { return m.State == MemberRunning || !m.Start.IsZero() }

// CauseKind is why a member is restored.
type CauseKind string

// causes are the kinds in words.
var causes = map[CauseKind]string{}

func causeKind(name CauseKind, words string) CauseKind {
	causes[name] = words
	return name
}

// The kinds of cause.
var (
	CauseRequeued   = causeKind("requeued", "requeued")
	CauseUnreleased = causeKind("unreleased", "prepared but never released") // the bridge ended in between
	CausePostponed  = causeKind("postponed", "put off")
	CauseHeld       = causeKind("held", "it is held")
	CauseImpossible = causeKind("impossible", "Slurm finds that its node doesn't suit it")
	CauseLimit      = causeKind("limit", "Slurm's limit ") // Detail is the limit
	CauseGPUTaken   = causeKind("gpu-taken", "another job took its GPU")
	CauseNodeDown   = causeKind("node-down", "its node went out of service")
	CausePassedOver = causeKind("passed-over", "Slurm keeps it waiting for other jobs")
	CauseLate       = causeKind("late", "did not start in time")
	CauseRunAlone   = causeKind("run-alone", "it failed while sharing and runs again alone")
	CauseTried      = causeKind("tried", "it failed with a part of the GPU's memory and runs again with all of it")
	CauseExpedited  = causeKind("expedited", "Slurm starts it again before all other jobs")
	CauseUngated    = causeKind("ungated", "all jobs are ungated")
	CauseEdited     = causeKind("edited", "its owner edited it")
)

// String returns the kind in words.
func (k CauseKind) String() string { return causes[k] }

// Cause is why a member is restored.
type Cause struct {
	Kind   CauseKind `json:"kind,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// String returns the cause in words.
func (c Cause) String() string { return c.Kind.String() + c.Detail }

// UnmarshalText refuses unknown states: a damaged journal costs a group, not the bridge's start.
func (s *MemberState) UnmarshalText(b []byte) error {
	if *s = MemberState(b); !s.Final() && !s.Pending() && *s != MemberRunning && *s != MemberRestoring {
		return fmt.Errorf("unknown state %q of a member", b)
	}
	return nil
}

// GroupKind says when a group starts.
type GroupKind string

// The kinds of group.
const (
	StartNow GroupKind = "start" // on an idle GPU, at once
	Join     GroupKind = "join"  // next to the jobs that run there, at once
	Turn     GroupKind = "turn"  // one job, alone on whichever GPU Slurm gives it when its turn comes; no Node until then
)

// GroupState is a stage in the life of a group.
type GroupState string

// The states of a group.
const (
	Preparing GroupState = "preparing" // written down, its members may have been changed
	Released  GroupState = "released"  // Slurm may start it
	Started   GroupState = "started"   // at least one member runs
	Done      GroupState = "done"      // no member is left
)

// Group is a set of jobs that the bridge has start together on one GPU.
type Group struct {
	ID   int64     `json:"id"`
	Kind GroupKind `json:"kind"`
	// State follows from the members' states; package release keeps it.
	State   GroupState `json:"state"`
	Node    string     `json:"node"`
	GPU     int        `json:"gpu"` // index on the node
	Members []Member   `json:"members"`
	// Pinned says that the members were bound to Node.
	Pinned  bool      `json:"pinned,omitempty"`
	Decided time.Time `json:"decided"`
	// Free is when the group could first have started: at its release.
	Free time.Time `json:"free,omitzero"`
	// Policy that chose it.
	Policy string `json:"policy,omitempty"`
}

// Clone returns a deep copy.
func (g *Group) Clone() Group {
	out := *g
	out.Members = slices.Clone(g.Members)
	return out
}

// Addr is the group's GPU.
func (g *Group) Addr() GPUAddr { return GPUAddr{Node: g.Node, GPU: g.GPU} }

// Where names the group's GPU in words. For a job that only keeps its turn Slurm chooses the GPU.
func (g *Group) Where() string {
	if g.Node == "" {
		return "in its turn"
	}
	return g.Addr().On()
}

// Refs returns the members whose state isn't final.
func (g *Group) Refs() []string {
	var out []string
	for i := range g.Members {
		if !g.Members[i].State.Final() {
			out = append(out, g.Members[i].Ref)
		}
	}
	return out
}
