// Package gpuprof records what jobs use of their GPUs and makes profiles of it.
package gpuprof

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// GPU is a card as a record names it.
type GPU struct {
	Index  int     `json:"index"` // gres.conf's order on its node
	UUID   string  `json:"uuid"`
	Model  string  `json:"model"`
	Arch   string  `json:"arch,omitempty"`
	MemMiB float64 `json:"mem_mib"`
	// PCIeMBps is what the link carries, both directions together; 0 = unknown.
	PCIeMBps float64 `json:"pcie_mbps,omitempty"`
}

// Neighbour is another job on the same GPU, and when it was there.
type Neighbour struct {
	JobID int64     `json:"job_id"`
	User  string    `json:"user,omitempty"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"` // the record's end if it was still there
}

// Record is what one job did with its GPU on one node.
type Record struct {
	JobID int64 `json:"job_id"`
	// ArrayJobID is 0 for a job that is no array's task, and for one whose node wasn't
	// told: Slurm 22.05 to 24.11 don't name it to a prolog, and the controller fills it in.
	ArrayJobID  int64     `json:"array_job_id,omitempty"`
	ArrayTaskID int64     `json:"array_task_id,omitempty"`
	Restart     int       `json:"restart"`
	Node        string    `json:"node"`
	UID         uint32    `json:"uid"`
	User        string    `json:"user"`
	Comment     string    `json:"comment,omitempty"` // hostile text, at most 1 KiB
	Start       time.Time `json:"start"`
	End         time.Time `json:"end"`
	GPUs        []GPU     `json:"gpus"`
	// Shared: the job held a share (gres/mps or gres/shard), not a whole GPU.
	Shared bool `json:"shared"`
	// Series holds one point a PeriodS seconds from Start on, at most MaxPoints.
	// Under sharing the figures are the GPU's, not the job's: before Volta MPS
	// shows one process for all.
	PeriodS    float64      `json:"period_s"`
	Series     []rlcore.Use `json:"series"`
	Mean       rlcore.Use   `json:"mean"`
	Peak       rlcore.Use   `json:"peak"`
	Neighbours []Neighbour  `json:"neighbours,omitempty"`
	// Samples that were taken, and those that failed.
	Samples int `json:"samples"`
	Failed  int `json:"failed"`
	// Cut: the record's series was dropped to save space; its summary is whole.
	Cut bool `json:"cut,omitempty"`
}

// MaxPoints bounds a record's series, however long the job ran.
const MaxPoints = 512

// ErrBadRecord marks a record that can't be true.
var ErrBadRecord = errors.New("bad record")

// Ref is how scontrol names the job.
func (r *Record) Ref() string {
	if r.ArrayJobID != 0 {
		return fmt.Sprintf("%d_%d", r.ArrayJobID, r.ArrayTaskID)
	}
	return strconv.FormatInt(r.JobID, 10)
}

// DurationS is how long the job ran, s.
func (r *Record) DurationS() float64 { return r.End.Sub(r.Start).Seconds() }

// Solo reports whether nobody else was on the job's GPUs.
func (r *Record) Solo() bool { return len(r.Neighbours) == 0 }

// Validate returns an error that wraps ErrBadRecord where the record can't be
// true.
func (r *Record) Validate() error {
	bad := func(what string, v any) error { return fmt.Errorf("%w: %s is %v", ErrBadRecord, what, v) }
	switch {
	case r.JobID <= 0:
		return bad("job_id", r.JobID)
	case r.Restart < 0:
		return bad("restart", r.Restart)
	case r.Node == "" || len(r.Node) > 255:
		return bad("the length of node", len(r.Node))
	case len(r.User) > 255:
		return bad("the length of user", len(r.User))
	case len(r.Comment) > 1024:
		return bad("the length of comment", len(r.Comment))
	case r.End.Before(r.Start) || r.DurationS() > 10*365*86400:
		return bad("end", r.End)
	case len(r.Series) > MaxPoints:
		return bad("the length of series", len(r.Series))
	case len(r.Series) > 0 && !(r.PeriodS > 0 && r.PeriodS < 1e7):
		return bad("period_s", r.PeriodS)
	case len(r.GPUs) > 64:
		return bad("the number of GPUs", len(r.GPUs))
	case len(r.Neighbours) > 1024:
		return bad("the number of neighbours", len(r.Neighbours))
	}
	for _, u := range append([]rlcore.Use{r.Mean, r.Peak}, r.Series...) {
		for _, v := range [...]float64{u.GPU, u.Core, u.MemMiB, u.PCIeMBps} {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
				return bad("a figure of the series", v)
			}
		}
		if u.GPU > 1 || u.Core > 1 {
			return bad("a utilisation", max(u.GPU, u.Core))
		}
	}
	return nil
}
