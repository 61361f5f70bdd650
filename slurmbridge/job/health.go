package job

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// HealthState says in one word whether the bridge can make jobs share.
type HealthState string

// The states of health.
const (
	Well     HealthState = "well"
	Impaired HealthState = "impaired" // jobs share, and something needs an admin
	Down     HealthState = "down"     // no job can be made to share
)

// HealthStates returns all states.
func HealthStates() []HealthState { return []HealthState{Well, Impaired, Down} }

// Health is a state and its reason, "" where all is well.
type Health struct {
	State HealthState `json:"state"`
	Why   string      `json:"why,omitempty"`
}

// GPUCount counts the GPUs of the last poll by what keeps jobs from sharing them.
type GPUCount struct {
	All       int `json:"all"`
	WithParts int `json:"with_shares"` // gres.conf gives them shares
	Up        int `json:"up"`          // of those: in service
	Open      int `json:"open"`        // of those: in a partition in which jobs may share
}

// CountGPUs counts the GPUs of a poll.
func (f *PartitionFilter) CountGPUs(s *Snapshot) (c GPUCount) {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		parts := 0
		for g := range n.GPUs {
			if n.Units > 0 && n.GPU(g).Units >= Units {
				parts++
			}
		}
		c.All += n.GPUs
		c.WithParts += parts
		if n.Up {
			c.Up += parts
		}
		if n.Up && f.opens(s, n) {
			c.Open += parts
		}
	}
	return c
}

// opens reports whether jobs may share the GPUs of a node.
func (f *PartitionFilter) opens(s *Snapshot, n *Node) bool {
	covers := func(p string) bool { return f.Covers(p) && !s.WholeNodes[p] }
	return !f.mixes(s, n) && slices.ContainsFunc(n.Partitions, covers)
}

// HarmCount counts the last day's runs that shared a GPU, and by kind those that sharing made worse off.
type HarmCount struct {
	Shared int            `json:"shared"`
	Harmed int            `json:"harmed"`
	Kinds  map[string]int `json:"kinds,omitempty"`
}

// The bridge is impaired if, of at least leastHarmed shared runs, more than one in mostHarmed is worse off than on
// plain Slurm. Both are chosen: in simulated worlds it is one run in two hundred.
const (
	mostHarmed  = 20
	leastHarmed = 3
)

func (h *HarmCount) grave() bool { return h.Harmed >= leastHarmed && h.Harmed*mostHarmed > h.Shared }

func (h *HarmCount) String() string {
	var kinds []string
	for _, k := range slices.Sorted(maps.Keys(h.Kinds)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", k, h.Kinds[k]))
	}
	return fmt.Sprintf("%d of the %s of the last day that shared a GPU were worse off than on plain Slurm (%s)", h.Harmed,
		Count(h.Shared, "run"), strings.Join(kinds, ", "))
}

// Health says whether the bridge does what it is for: it polls, its gate is right, there are GPUs to share, its changes
// are taken, and harm stays below a bound. fresh is how old the last successful poll may be.
func (s *Status) Health(now time.Time, fresh time.Duration) Health {
	if why := s.stopped(now, fresh); why != "" {
		return Health{Down, why}
	}
	for i := range s.Refused {
		if r := &s.Refused[i]; r.GivenUp > 0 || r.Step == StepUngate {
			// All users can read the health, so the reason names no job and quotes no plugin.
			return Health{Impaired, fmt.Sprintf("Slurm refuses to %s (%s); slurmbridge status and doctor say more",
				stepWords[r.Step], r.Code)}
		}
	}
	switch {
	case s.Harm.grave():
		return Health{Impaired, s.Harm.String()}
	case s.Wanted != "" && s.Policy != s.Wanted:
		return Health{Impaired, fmt.Sprintf("policy %s decides in place of %s, which failed", s.Policy, s.Wanted)}
	}
	return Health{State: Well}
}

// stopped says why no job can be made to share, "" = nothing keeps them from it.
func (s *Status) stopped(now time.Time, fresh time.Duration) string {
	switch {
	case s == nil:
		return "Slurm has not been polled yet"
	case s.At.IsZero():
		return "no poll has succeeded yet: " + s.Err
	case now.Sub(s.At) > fresh:
		return fmt.Sprintf("the last successful poll was %s ago: %s", now.Sub(s.At).Round(time.Second),
			cmp.Or(s.Err, "no later one has ended"))
	case s.Mode == Active && s.Gate == "":
		return strings.TrimSuffix("there is no gate, so shared jobs run alone: "+s.GateErr, ": ")
	case len(s.Misread) > 0:
		return "Slurm reports the gate otherwise than it was submitted, so no job is touched: " + s.GateErr
	}
	const doctor = "; slurmbridge doctor prints what is missing"
	switch c := &s.Shareable; {
	case c.All == 0:
		return "no node has a GPU" + doctor
	case c.WithParts == 0:
		return fmt.Sprintf("none of the %s has shares", Count(c.All, "GPU")) + doctor
	case c.Up == 0:
		return fmt.Sprintf("none of the %s with shares is in service", Count(c.WithParts, "GPU"))
	case c.Open == 0:
		return "no GPU is in a partition in which jobs may share (include_partitions, exclude_partitions; before Slurm " +
			"25.05 sharers_only)" + doctor
	}
	return ""
}
