package gpuprof

import "fmt"

// IdleBelow is the part of its time, or of its processors, below which a GPU does nothing.
const IdleBelow = 0.01

// Idle is a job that runs and has done nothing with its GPUs for a while.
type Idle struct {
	JobID int64   `json:"job_id"`
	IdleS float64 `json:"idle_s"` // up to now
}

// IdleReport is an agent's regular report on idle jobs on its node.
type IdleReport struct {
	Node string `json:"node"`
	Jobs []Idle `json:"jobs"`
}

// Validate returns an error that wraps ErrBadRecord where the report can't be true.
func (r *IdleReport) Validate() error {
	if r.Node == "" || len(r.Node) > 255 || len(r.Jobs) > 4096 {
		return fmt.Errorf("%w: a report of %d jobs on %.32q", ErrBadRecord, len(r.Jobs), r.Node)
	}
	for _, j := range r.Jobs {
		if j.JobID <= 0 || !(j.IdleS >= 0 && j.IdleS < 1e9) {
			return fmt.Errorf("%w: job %d idle for %v s", ErrBadRecord, j.JobID, j.IdleS)
		}
	}
	return nil
}
