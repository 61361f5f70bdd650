// Package schedule makes list schedules of whole GPUs: each job in turn gets the GPUs that it may use and that are free
// first, as plain Slurm hands them out. SlurmAlone is the
// schedule that plain Slurm would have kept of the jobs.
package schedule

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
)

// GPUSet is a set of GPUs, by their indexes. nil is the set of all GPUs. Jobs with the same demands share one value, so
// two sets are taken to be the same only if they are one value.
type GPUSet struct {
	list []int  // in ascending order
	has  []bool // by GPU
}

// mostGPUs bounds the indexes of a stored set.
const mostGPUs = 1 << 20

// NewGPUSet returns the set of the given GPUs. A negative index is none.
func NewGPUSet(gpus ...int) *GPUSet {
	s := &GPUSet{list: slices.Compact(slices.Sorted(slices.Values(gpus)))}
	s.list = slices.DeleteFunc(s.list, func(g int) bool { return g < 0 })
	if n := len(s.list); n > 0 {
		s.has = make([]bool, s.list[n-1]+1)
	}
	for _, g := range s.list {
		s.has[g] = true
	}
	return s
}

// Has reports whether GPU g is in the set.
func (s *GPUSet) Has(g int) bool { return s == nil || g < len(s.has) && s.has[g] }

// Len returns how many of n GPUs are in the set.
func (s *GPUSet) Len(n int) int {
	if s == nil {
		return n
	}
	at, _ := slices.BinarySearch(s.list, n)
	return at
}

// Of ranges, in ascending order, over the GPUs of the set below n.
func (s *GPUSet) Of(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range s.Len(n) {
			g := i
			if s != nil {
				g = s.list[i]
			}
			if !yield(g) {
				return
			}
		}
	}
}

// MarshalJSON implements json.Marshaler.
func (s *GPUSet) MarshalJSON() ([]byte, error) { return json.Marshal(s.list) }

// UnmarshalJSON implements json.Unmarshaler.
func (s *GPUSet) UnmarshalJSON(b []byte) error {
	var list []int
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	if len(list) > 0 && (slices.Min(list) < 0 || slices.Max(list) >= mostGPUs) {
		return fmt.Errorf("a set of GPUs goes from %d to %d", slices.Min(list), slices.Max(list))
	}
	*s = *NewGPUSet(list...)
	return nil
}
