package job

import (
	"errors"
	"fmt"
	"maps"
	"time"
)

// Codes of changes that weren't made, besides the names of Slurm's errors.
const (
	CodeOther   = "other"    // an error without a name
	CodeNotDone = "not-done" // Slurm took the change, and the next poll doesn't show it
)

// NotDone is why a change with CodeNotDone wasn't made.
const NotDone = "Slurm agreed to a change of it and didn't make it: " +
	"a plugin of the site's, or the job's owner, changed it otherwise"

// JobError is what Slurm says of one job of an update that it didn't make.
type JobError struct {
	Kind error  // ErrDown, ErrRefused or ErrNoJob
	Code string // Slurm's name of the error, ESLURM_INVALID_GRES say; CodeOther
	Text string // Slurm's words
}

// JobErrors returns what an update's error says of each of its jobs. One that names none of them is about all.
func JobErrors(err error, refs []string) map[string]JobError {
	if err == nil {
		return nil
	}
	named, out := map[string]JobError{}, map[string]JobError{}
	ofJobs(err, named)
	rest := JobError{Kind: ErrRefused, Code: CodeOther, Text: err.Error()}
	switch {
	case errors.Is(err, ErrDown):
		rest.Kind = ErrDown
	case errors.Is(err, ErrNoJob):
		rest.Kind = ErrNoJob
	}
	for _, ref := range refs {
		if e, ok := named[ref]; ok {
			out[ref] = e
		}
	}
	if len(out) > 0 {
		return out
	}
	for _, ref := range refs {
		out[ref] = rest
	}
	return out
}

// ofJobs collects what the errors in a tree say of jobs.
func ofJobs(err error, to map[string]JobError) {
	switch e := err.(type) { //nolint:errorlint // the tree is walked by hand: all of it counts, not the first
	case interface{ JobErrors() map[string]JobError }:
		maps.Copy(to, e.JobErrors())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			ofJobs(one, to)
		}
	case interface{ Unwrap() error }:
		ofJobs(e.Unwrap(), to)
	}
}

// RefusedChanges are the changes for one step that came to nothing for one reason.
type RefusedChanges struct {
	Step Step   `json:"step"`
	Code string `json:"code"` // see JobError, CodeNotDone
	Text string `json:"text"`
	// Times counts the changes of a job, GivenUp the jobs that were left to Slurm for them; Example is the last job.
	Times   int       `json:"times"`
	GivenUp int       `json:"given_up"`
	Example string    `json:"example"`
	Last    time.Time `json:"last"`
}

// stepWords say what a change is for.
var stepWords = map[Step]string{
	StepGate:    "put a job behind the gate",
	StepPrepare: "give a job its shares of a GPU",
	StepRelease: "let a job start in its group",
	StepRestore: "give a job back what it had",
	StepUngate:  "let a job go from the gate",
	StepExtend:  "raise a job's time limit",
	StepComment: "write a job's AdminComment",
}

// String says what was refused, for status and doctor.
func (r *RefusedChanges) String() string {
	what := fmt.Sprintf("%s, %s in the last day", stepWords[r.Step], times(r.Times))
	text := fmt.Sprintf("Slurm refused to %s, job %s last: %s (%s)", what, r.Example, r.Text, r.Code)
	if r.Code == CodeNotDone {
		text = fmt.Sprintf("Slurm agreed to %s, and didn't do it, for job %s last", what, r.Example)
	}
	switch r.GivenUp {
	case 0:
		return text
	case 1:
		return text + ". One job was left to run without sharing"
	}
	return fmt.Sprintf("%s. %d jobs were left to run without sharing", text, r.GivenUp)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
