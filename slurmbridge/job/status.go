package job

import (
	"time"
)

// Status is what the bridge knows after a poll. A published one never changes.
type Status struct {
	At           time.Time // of the last successful poll
	Mode         Mode
	Policy       string // that decides
	Model        string // by which it decides, "" = by none
	Wanted       string // the configured policy, another than Policy after a fall-back; "" = not known
	Objective    string // what decisions keep small, "" = not known
	Gate         string
	GateAccount  string        // the gate's account where Slurm refused its user's default one, "" = it didn't
	GateErr      string        // what is wrong with the gate, or why there is none; "" = nothing
	Standby      string        // the daemon that keeps the gate and decides instead of this one, "" = none does
	Misread      []Misread     // what Slurm says of the gate that isn't so; nothing is grouped
	Lease        time.Duration // left
	Snap         *Snapshot
	Plan         *Plan
	Groups       []Group
	Explanations map[string]*Explanation
	Apps         map[string]App
	Waiting      int
	Window       int    // how many waiting jobs a decision considers
	Err          string // why the last poll failed, "" = it didn't
	// MaxDelayS is the longest time in seconds that the bridge alone has kept any job waiting
	// since the daemon started.
	MaxDelayS float64
	// Refused are the changes that Slurm has refused in the last day.
	Refused []RefusedChanges
	// Unmanaged says, by ref, why the bridge leaves a job alone.
	Unmanaged map[string]string
	// KeptOut is how many applications aren't adopted now because one of their jobs was slower than its contract, and
	// StoppedRules how many rules are stopped for the same.
	KeptOut, StoppedRules int
	// Idle are the running jobs that have done nothing with their GPUs for long, the longest first.
	Idle []Idle
	// WithoutMPS are the running jobs that share a GPU without MPS: the GPU takes turns.
	WithoutMPS []string
	// Faulted are the GPUs that no job joins until those there have ended: their MPS server may be broken.
	Faulted []GPUAddr
}

// Idle is a running job that has done nothing with its GPUs for long.
type Idle struct {
	Ref       string    `json:"job"`
	Name      string    `json:"name,omitempty"` // its owner's text
	User      string    `json:"user"`
	Account   string    `json:"account,omitempty"`
	Partition string    `json:"partition"`
	NoMail    bool      `json:"no_mail,omitempty"` // its owner wants no mail on it
	Node      string    `json:"node"`
	GPUs      float64   `json:"gpus"` // that it holds; shares count as parts of one
	Whole     bool      `json:"whole"`
	Since     time.Time `json:"since"`
}

// QueuePosition is where a job stands that waits for a decision.
type QueuePosition struct {
	At time.Time `json:"at"`
	// Gate that it waits behind; "" in shadow, where there is none.
	Gate string `json:"gate,omitempty"`
	// LeaseLeftS is after how many seconds the gate opens by itself if the bridge is gone.
	LeaseLeftS float64 `json:"lease_left_s"`
	// Position counts from 1 among the Of jobs that wait for a decision, highest priority
	// first; 0 = it isn't one of them, because of Holds.
	Position int `json:"place"`
	Of       int `json:"of"`
	// Window is how many of the jobs that may use its GPU a decision considers.
	Window int `json:"window"`
	// Holds says what the job waits for besides the bridge, "" = nothing.
	Holds string `json:"holds,omitempty"`
	// NotAdopted says why a rule of the site's doesn't make the job share; it isn't the bridge's then. "" = it waits.
	NotAdopted string `json:"not_adopted,omitempty"`
	// ExpectedStart is the latest expected start, zero = not known.
	ExpectedStart time.Time `json:"expected_start,omitzero"`
}
