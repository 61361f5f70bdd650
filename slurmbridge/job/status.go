package job

import (
	"time"
)

// Status is what the bridge knows after a poll. A published one never changes.
type Status struct {
	At     time.Time `json:"at"` // of the last successful poll
	Mode   Mode      `json:"mode"`
	Policy string    `json:"policy"`          // that decides
	Model  string    `json:"model,omitempty"` // by which it decides, "" = by none
	// Wanted is the configured policy, another than Policy after a fall-back; "" = not known.
	Wanted    string `json:"-"`
	Objective string `json:"objective,omitempty"` // what decisions keep small, "" = not known
	Gate      string `json:"gate,omitempty"`
	// GateAccount is the gate's where Slurm refused its user's default one, else "".
	GateAccount string `json:"gate_account,omitempty"`
	// GateErr is what is wrong with the gate, or why there is none; "" = nothing.
	GateErr string `json:"gate_error,omitempty"`
	// Standby is the daemon that keeps the gate and decides instead of this one, "" = none does.
	Standby string `json:"standby,omitempty"`
	// Misread is what Slurm says of the gate that isn't so; nothing is grouped.
	Misread      []Misread               `json:"misread,omitempty"`
	Lease        time.Duration           `json:"-"` // left
	Snap         *Snapshot               `json:"-"`
	Plan         *Plan                   `json:"-"`
	Groups       []Group                 `json:"groups"`
	Explanations map[string]*Explanation `json:"-"`
	Apps         map[string]App          `json:"-"`
	Waiting      int                     `json:"waiting"`
	Window       int                     `json:"-"`               // how many waiting jobs a decision considers
	Err          string                  `json:"error,omitempty"` // why the last poll failed, "" = it didn't
	// MaxDelayS is the longest time in seconds that the bridge alone has kept any job waiting since the daemon started.
	MaxDelayS float64 `json:"added_delay_max_s"`
	// Refused are the changes that Slurm, or a plugin of the site's, has refused in the last day.
	Refused []RefusedChanges `json:"refused,omitempty"`
	// Harm counts what sharing cost runs in the last day, Shareable the GPUs by what keeps jobs from sharing them.
	Harm      HarmCount `json:"harm"`
	Shareable GPUCount  `json:"shareable"`
	// Unmanaged says, by ref, why the bridge leaves a job alone.
	Unmanaged map[string]string `json:"left_to_slurm,omitempty"`
	// KeptOut is how many applications aren't adopted now because one of their jobs was slower than its contract, and
	// StoppedRules how many rules are stopped for the same.
	KeptOut      int `json:"-"`
	StoppedRules int `json:"-"`
	// Idle are the running jobs that have done nothing with their GPUs for long, the longest first.
	Idle []Idle `json:"-"`
	// WithoutMPS are the running jobs that share a GPU without MPS: the GPU takes turns.
	WithoutMPS []string `json:"sharers_without_mps,omitempty"`
	// Faulted are the GPUs that no job joins until those there have ended: their MPS server may be broken.
	Faulted []GPUAddr `json:"-"`
}

// Deciding says by what the bridge decides, for people.
func (s *Status) Deciding() string {
	text := s.Policy
	if s.Model != "" {
		text += " (model " + s.Model + ")"
	}
	if s.Objective != "" {
		text += " for the " + s.Objective
	}
	return text
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
