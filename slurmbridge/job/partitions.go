package job

import (
	"slices"
	"strings"
)

// PartitionFilter limits which jobs the bridge manages.
type PartitionFilter struct {
	Include, Exclude []string // partitions; an empty Include means all
	// SharersOnly are partitions in which no job gets a whole GPU but by all of its shares; AnyPartition: all.
	SharersOnly []string
}

// AnyPartition stands for all partitions.
const AnyPartition = "*"

// Covers reports whether the bridge manages jobs of these partitions, which are separated by commas.
func (f *PartitionFilter) Covers(partitions string) bool {
	return !slices.ContainsFunc(strings.Split(partitions, ","), func(p string) bool {
		return slices.Contains(f.Exclude, p) || len(f.Include) > 0 && !slices.Contains(f.Include, p)
	})
}

// MeetsWholeGPUs reports whether Slurm could put a job of a whole GPU on a GPU that a job shares.
func (f *PartitionFilter) MeetsWholeGPUs(s *Snapshot, j *Job) bool {
	if !s.GivesUsedGPUs || slices.Contains(f.SharersOnly, AnyPartition) {
		return false
	}
	partitions, mixed := j.Partitions(), func(p string) bool { return !slices.Contains(f.SharersOnly, p) }
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Serves(partitions) && slices.ContainsFunc(n.Partitions, mixed) {
			return true
		}
	}
	return false
}
