// Package wake turns lines appended to a file into events. The job_submit script and EpilogSlurmctld append one line
// each time something happened that the bridge wants to know of; what the lines say doesn't matter.
package wake

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// limit is the size from which on the file is emptied, bytes.
const limit = 1 << 20

// File watches path and calls wake after each change, until ctx ends. The file is made where it is missing, which is a
// change, with mode 0660: slurmctld's user may append, users may not.
func File(ctx context.Context, path string, wake func()) error {
	path = filepath.Clean(path) // as events name it
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch wake file: %w", err)
	}
	defer w.Close()
	// The folder is watched, so that a file that was moved away and created again is seen too.
	if err := w.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watch wake file: %w", err)
	}
	f, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o660)
	if err != nil {
		return fmt.Errorf("wake file: %w", err)
	}
	_ = f.Close() // nothing was written
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err, ok := <-w.Errors:
			if !ok {
				return errors.New("watch wake file: the watcher ended")
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch wake file: %w", err)
			}
			wake()
		case e, ok := <-w.Events:
			if !ok {
				return errors.New("watch wake file: the watcher ended")
			}
			if e.Name != path || !e.Has(fsnotify.Write) && !e.Has(fsnotify.Create) {
				continue
			}
			wake()
			if info, err := os.Stat(path); err == nil && info.Size() > limit {
				// A line lost here was already counted as an event above.
				_ = os.Truncate(path, 0)
			}
		}
	}
}
