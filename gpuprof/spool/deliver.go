package spool

import (
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
)

const (
	// idle is the time between two looks where nothing calls for one.
	idle = time.Minute
	// sayAgain is how often a trouble that lasts is logged.
	sayAgain = 10 * time.Minute
	// patience is how many records in a row the controller may fail to keep before
	// it is the controller's trouble, and not those records'.
	patience = 3
)

// Run sends what waits until ctx ends, oldest first, with growing pauses while
// the controller doesn't take it.
func (s *Spool) Run(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval, pause.RandomizationFactor = s.Retry, s.RetryMax, 0.5
	var said time.Time // when a trouble that lasts was logged
	for {
		s.settle()
		sent, err := s.flush(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait, wake := idle, s.wake
		switch {
		case err != nil:
			if sent > 0 {
				pause.Reset()
			}
			// Nothing cuts this pause short: a new record has no better chance.
			wait, wake = pause.NextBackOff(), nil
			if time.Since(said) > sayAgain {
				s.Log.Warn("records wait for the controller; tried again until it takes them", "waiting", s.Waiting(), "err", err)
				said = time.Now()
			}
		case !said.IsZero():
			s.Log.Info("the controller takes records again", "sent", sent)
			said = time.Time{}
			pause.Reset()
		default:
			pause.Reset()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		case <-wake:
			timer.Stop()
		}
	}
}

// settle moves what waits in memory to the disk, once that takes it.
func (s *Spool) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := s.folders[0]
	var moving []*item
	for _, it := range s.items {
		if it.in != best {
			moving = append(moving, it)
		}
	}
	for _, it := range moving {
		if _, ok := s.waiting(it); !ok {
			continue // dropped for one that moved before it
		}
		r, err := read(it.path())
		if err != nil {
			if s.unreadable(it, err) != nil {
				break
			}
			continue
		}
		to, err := s.lay(best, it.name, r)
		if err != nil {
			break
		}
		from := *it
		*it = *to
		from.in.n--
		it.in.n++
		if err := os.Remove(from.path()); err == nil || gone(err) {
			from.in.used -= from.size
		}
	}
	s.show()
}

// flush sends all that waits; err is the first failure.
func (s *Spool) flush(ctx context.Context) (sent int, err error) {
	failures, last := 0, ""
	for {
		it := s.after(last)
		if it == nil {
			return sent, err
		}
		last = it.name
		switch failed := s.deliver(ctx, it); {
		case failed == nil:
			failures = 0
			sent++
		case err == nil:
			err = failed
			fallthrough
		default:
			if failures++; failures == patience || !itsOwn(failed) || ctx.Err() != nil {
				return sent, err
			}
		}
	}
}

// itsOwn reports whether a failure may be one record's alone, so that the next
// is worth a try.
func itsOwn(err error) bool {
	var no *recordhttp.AnswerError
	return errors.As(err, &no) && (no.Status >= http.StatusInternalServerError || no.Status == http.StatusBadRequest || no.Status == http.StatusRequestTimeout)
}

// after returns the first record behind that name, nil = there is none.
func (s *Spool) after(name string) *item {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := s.find(name)
	if found {
		at++
	}
	if at == len(s.items) {
		return nil
	}
	return s.items[at]
}

// deliver sends one record. It may be cut, moved or dropped meanwhile.
func (s *Spool) deliver(ctx context.Context, it *item) error {
	s.mu.Lock()
	path := it.path()
	r, err := read(path)
	if err != nil {
		defer s.mu.Unlock()
		defer s.show()
		return s.unreadable(it, err)
	}
	s.mu.Unlock()
	err = s.Send(ctx, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.show()
	switch {
	case errors.Is(err, recordhttp.ErrRefused):
		s.Log.Error("the controller refused a record; set aside", "file", path, "err", err)
		s.setAside(it, refused)
		s.Metrics.tried("refused")
		s.Metrics.dropped.WithLabelValues("refused").Inc()
	case err != nil:
		if ctx.Err() == nil {
			s.Metrics.tried("error")
		}
		return err
	default:
		s.remove(it)
		s.Metrics.tried("ok")
	}
	return nil
}
