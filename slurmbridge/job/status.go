package job

import (
	"time"
)

// Status is the bridge's state after a poll. Once published it is never changed.
type Status struct {
	At     time.Time `json:"at"` // of the last successful poll
	Mode   Mode      `json:"mode"`
	Policy string    `json:"policy"`          // in use
	Model  string    `json:"model,omitempty"` // by which it decides, "" = by none
	// Wanted is the configured policy, which differs from Policy after a fall-back; "" = not known.
	Wanted string `json:"-"`
	Gate   string `json:"gate,omitempty"`
	// GateAccount is the gate's account where Slurm refused its user's default account, else "".
	GateAccount string `json:"gate_account,omitempty"`
	// GateErr says what is wrong with the gate, or why there is none; "" = all is well.
	GateErr string `json:"gate_error,omitempty"`
	// Standby names the other daemon that owns the gate and decides; "" = this one does.
	Standby string `json:"standby,omitempty"`
	// Misread holds the gate's fields that Slurm reports with other values than were submitted; while there are any,
	// nothing is grouped.
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
	// Refused are the last day's changes that Slurm or a site's plugin refused.
	Refused []RefusedChanges `json:"refused,omitempty"`
	// Harm counts what sharing cost runs in the last day, Shareable the GPUs by what keeps jobs from sharing them.
	Harm      HarmCount `json:"harm"`
	Shareable GPUCount  `json:"shareable"`
	// Unmanaged says, by ref, why the bridge leaves a job alone.
	Unmanaged map[string]string `json:"left_to_slurm,omitempty"`
	// BarredApps counts the applications that aren't adopted now since one of their jobs was slower than its contract
	// allows, StoppedRules the rules that are stopped for that.
	BarredApps   int `json:"-"`
	StoppedRules int `json:"-"`
	// Idle lists the running jobs that haven't used their GPUs for long, the longest idle first.
	Idle []Idle `json:"-"`
	// WithoutMPS lists the running jobs that share a GPU without MPS, by time slices.
	WithoutMPS []string `json:"sharers_without_mps,omitempty"`
	// Faulted lists the GPUs that no job joins until the jobs there have ended: their MPS server may be broken.
	Faulted []GPUAddr `json:"-"`
}

// Deciding describes the policy in use.
func (s *Status) Deciding() string {
	text := s.Policy
	if s.Model != "" {
		text += " (model " + s.Model + ")"
	}
	return text
}

// Idle is a running job that hasn't used its GPUs for long.
type Idle struct {
	Ref       string    `json:"job"`
	Name      string    `json:"name,omitempty"` // its owner's text
	User      string    `json:"user"`
	Account   string    `json:"account,omitempty"`
	Partition string    `json:"partition"`
	NoMail    bool      `json:"no_mail,omitempty"` // its owner wants no mail about it
	Node      string    `json:"node"`
	GPUs      float64   `json:"gpus"` // that it holds; shares count as parts of one
	Whole     bool      `json:"whole"`
	Since     time.Time `json:"since"`
}

// QueuePosition is the place of a job that waits for a decision.
type QueuePosition struct {
	At time.Time `json:"at"`
	// Gate is the gate job that the job waits for; "" in shadow mode, which has none.
	Gate string `json:"gate,omitempty"`
	// LeaseLeftS is after how many seconds the gate opens by itself if the bridge is gone.
	LeaseLeftS float64 `json:"lease_left_s"`
	// Position counts from 1 among the Of jobs that wait for a decision, highest priority
	// first; 0 = it isn't one of them, because of Holds.
	Position int `json:"place"`
	Of       int `json:"of"`
	// Window is how many of the jobs that may use its GPU a decision considers.
	Window int `json:"window"`
	// Holds names what else the job waits for, "" = the bridge alone.
	Holds string `json:"holds,omitempty"`
	// NotAdopted says why none of the site's rules adopts the job, which is left to Slurm then; "" = it waits.
	NotAdopted string `json:"not_adopted,omitempty"`
	// ExpectedStart is the latest expected start, zero = not known.
	ExpectedStart time.Time `json:"expected_start,omitzero"`
}
