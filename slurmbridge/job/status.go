package job

import (
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// App is what is known of a job's application.
type App struct {
	Key     string
	Profile *rlcore.Profile // nil = never seen to its end
}

// Status is what the bridge knows after a look, for people and programs. It is
// never changed once published.
type Status struct {
	At           time.Time
	Mode         Mode
	Policy       string // that decides
	Model        string // by which it decides, "" = by none
	Wanted       string // that the settings name; another than Policy after a fall back, "" = not said
	Gate         string
	Lease        time.Duration // left
	Snap         *Snapshot
	Plan         *Plan
	Groups       []Group
	Explanations map[string]*Explanation
	Apps         map[string]App
	Waiting      int
	Window       int    // how many waiting jobs a decision looks at
	Err          string // why the last look failed, "" = it didn't
	// LookOK is when the last successful look was.
	LookOK time.Time
	// MaxDelayS is the longest that the bridge alone has kept any job waiting since
	// the daemon started, s.
	MaxDelayS float64
	// HandsOff by ref: why the bridge leaves a job alone.
	Unmanaged map[string]string
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
	// Window is how many of them a decision looks at, of those that may use its GPU.
	Window int `json:"window"`
	// Holds says what the job waits for besides the bridge, "" = nothing.
	Holds string `json:"holds,omitempty"`
}
