package job

import "time"

// GroupKind says when a group starts.
type GroupKind string

// The kinds of group.
const (
	StartNow GroupKind = "start" // on an idle GPU, at once
	Join     GroupKind = "join"  // next to the jobs that run there, at once
	Turn     GroupKind = "turn"  // one job, alone on whichever GPU Slurm gives it when its turn comes; no Node until then
	Next     GroupKind = "next"  // when the jobs that run there have ended; no release after 0.1 makes any
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

// Group is a set of jobs that the bridge has start together on one GPU.
type Group struct {
	ID   int64     `json:"id"`
	Kind GroupKind `json:"kind"`
	// State follows from the members' states; package release keeps it.
	State   GroupState `json:"state"`
	Node    string     `json:"node"`
	GPU     int        `json:"gpu"` // index on the node
	Members []Member   `json:"members"`
	// After lists the jobs that have to end before a Next group starts.
	After []string `json:"after,omitempty"`
	// Pinned says that the members were bound to Node.
	Pinned  bool      `json:"pinned,omitempty"`
	Decided time.Time `json:"decided"`
	// Free is when the group could first have started: at its release.
	Free  time.Time `json:"free,omitzero"`
	Score float64   `json:"score,omitempty"`
	// Policy that chose it.
	Policy string `json:"policy,omitempty"`
}

// Addr is the group's GPU.
func (g *Group) Addr() GPUAddr { return GPUAddr{Node: g.Node, GPU: g.GPU} }

// Refs returns the members that still need looking after.
func (g *Group) Refs() []string {
	var out []string
	for i := range g.Members {
		if !g.Members[i].State.Final() {
			out = append(out, g.Members[i].Ref)
		}
	}
	return out
}

// FillStates sets the states of members that an older journal wrote without one and that
// are on their way to a GPU: the group's state says how far they are.
func (g *Group) FillStates() {
	for i := range g.Members {
		m := &g.Members[i]
		switch {
		case m.State != "":
		case g.State == Preparing:
			m.State = MemberPrepared
		default:
			m.State = MemberWaiting
		}
	}
}
