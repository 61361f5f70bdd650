package job

import (
	"fmt"
	"slices"
	"strings"
)

// Ranks say which jobs Slurm may preempt for others.
type Ranks struct {
	ByQOS bool // preempt/qos: which QOS preempts which isn't known
	// Partitions are there with preempt/partition_prio, by name.
	Partitions map[string]PartitionRank
}

// PartitionRank is a partition's: its jobs may preempt those of lower tiers that are preemptible, on nodes of both.
type PartitionRank struct {
	Tier        int
	Preemptible bool
}

// Of is a word that is the same for jobs that may be preempted alike, and for which none may preempt the other.
func (r *Ranks) Of(j *Job) string {
	switch {
	case r.ByQOS:
		return j.QOS
	case r.Partitions == nil:
		return ""
	}
	var all []string
	for _, p := range j.Partitions() {
		all = append(all, fmt.Sprint(r.Partitions[p]))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// Preempts reports whether Slurm may preempt a running job, nil = it isn't known, for a pending one.
func (r *Ranks) Preempts(pending, running *Job) bool {
	if len(r.Partitions) == 0 || running == nil {
		return false
	}
	other := r.Partitions[running.Partition]
	if !other.Preemptible {
		return false
	}
	return slices.ContainsFunc(pending.Partitions(), func(p string) bool { return r.Partitions[p].Tier > other.Tier })
}
