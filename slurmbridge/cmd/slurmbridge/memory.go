package main

import (
	"cmp"
	"context"
	"net/http"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

// memory serves the memory limits of jobs that share.
func (w *wired) memory(mux *http.ServeMux, who *httpapi.Asker) {
	mux.Handle("GET "+httpapi.MemoryPath, &httpapi.Memory{Limit: w.memoryLimit, Asker: who})
}

// asker identifies users by their credentials; allowed are the users with access to everything.
func asker(how credential.Method, allowed []uint32) *httpapi.Asker {
	turns := &credential.Turns{Method: how}
	return &httpapi.Asker{
		Header: how.Header(), Decode: turns.Decode, Hint: how.Hint,
		Trusted: func(uid uint32) bool { return slices.Contains(allowed, uid) },
		Name: func(uid uint32) string {
			u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
			if err != nil {
				return ""
			}
			return u.Username
		},
	}
}

// memoryLimit is what each process of a user's job was given of its GPU's memory when its group was
// decided, MiB; 0 = any.
func (w *wired) memoryLimit(ctx context.Context, ref, user string) (int64, error) {
	id, isNumber := strconv.ParseInt(ref, 10, 64)
	if isNumber == nil {
		// A node knows an array task by its number only.
		now := time.Now()
		var err error
		if ref, err = w.journal.TaskName(ctx, id, now, now); err != nil {
			return 0, err
		}
	}
	m, err := w.journal.MemberOf(ctx, ref)
	if err == nil && m == nil && isNumber == nil && w.taskName != nil {
		// A task that starts has a number that no poll has shown yet.
		if ref, err = w.taskName(ctx, id); err != nil {
			return 0, nil //nolint:nilerr // Slurm doesn't answer: nothing is known of the job
		}
		m, err = w.journal.MemberOf(ctx, ref)
	}
	// An old hook doesn't name the job's owner, so nothing is certain about the job.
	if err != nil || m == nil || m.User != user || m.State.Final() {
		return 0, err
	}
	return cmp.Or(m.ProcessMiB, m.MemMiB), nil
}
