package gpusim

// Kind is what a process on a GPU is.
type Kind uint32

// The kinds.
const (
	Own    Kind = 1 // has a context of its own: time-slicing
	Client Kind = 2 // of an MPS server
	Server Kind = 3 // an MPS server
)

// String returns the kind in a word.
func (k Kind) String() string { return []string{"", "own", "mps-client", "mps-server"}[k] }

// Status is how a process on a GPU fares.
type Status uint32

// The statuses. Of those after Paused the GPU holds nothing any more.
const (
	Free     Status = 0
	Running  Status = 1
	Paused   Status = 2 // stopped by a signal: holds memory, demands nothing
	Finished Status = 3
	OOM      Status = 4 // an allocation failed
	Faulted  Status = 5 // its context was destroyed
)

// String returns the status in a word, as reports have it.
func (s Status) String() string {
	return []string{"free", "running", "paused", "finished", "oom", "fault"}[s]
}

// present reports whether a process of this status holds memory.
func (s Status) present() bool { return s == Running || s == Paused }
