package main

import (
	"context"
	"net/http"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof/munge"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

// memory serves the memory limits of jobs that share.
func (w *wired) memory(mux *http.ServeMux, margin float64, who *httpapi.Asker) {
	mux.Handle("GET "+httpapi.MemoryPath, &httpapi.Memory{Profile: w.profile, Margin: margin, Asker: who})
}

// asker tells users by their MUNGE credentials; allowed are those who may see everything.
func asker(m *munge.Munge, allowed []uint32) *httpapi.Asker {
	turns := &munge.Turns{Munge: m}
	return &httpapi.Asker{
		Decode: func(ctx context.Context, host, credential string) (uint32, string, error) {
			c, err := turns.Decode(ctx, host, credential)
			if err != nil {
				return 0, "", err
			}
			return c.UID, c.Payload, nil
		},
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

// profile returns the profile of the application that was recognised in a job, nil =
// none or not that user's job. One made from relatives of other sizes isn't good enough
// to hold a job to.
func (w *wired) profile(ctx context.Context, ref, user string) (*rlcore.Profile, error) {
	if id, err := strconv.ParseInt(ref, 10, 64); err == nil {
		// A node knows an array task by its number only.
		now := time.Now()
		if ref, err = w.journal.TaskName(ctx, id, now, now); err != nil {
			return nil, err
		}
	}
	if user == "" {
		return nil, nil // an old hook, of whose job nothing can be known for certain
	}
	app, err := w.store.AppOf(ctx, ref, user)
	if err != nil {
		return nil, err
	}
	return w.store.Known(ctx, user, app)
}
