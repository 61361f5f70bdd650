package models

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
)

// stored matches a file of a release that named networks by their SHA-256.
var stored = regexp.MustCompile(`^\.?[0-9a-f]{64}\.(json|mix\.gz)[0-9]*$`)

// Upgrade takes over the network in use from releases that kept a register of networks in the
// database, and removes that release's other files. It does so once.
func (d Dir) Upgrade(ctx context.Context, db *sql.DB, log *slog.Logger) error {
	body, pinned := "{}", false
	err := db.QueryRowContext(ctx, `SELECT coalesce(body, '{}'), pinned FROM bridge_model_use LEFT JOIN bridge_models ON model = bridge_models.id`).Scan(&body, &pinned)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	var old struct {
		SHA256 string `json:"sha256"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), &old)
	}
	if err != nil {
		return fmt.Errorf("take over the network of an earlier release: %w", err)
	}
	file := old.SHA256 + ".json"
	if _, err := os.Lstat(d.Current()); errors.Is(err, fs.ErrNotExist) && stored.MatchString(file) {
		if err := os.Rename(filepath.Join(string(d), file), d.Current()); err != nil {
			return fmt.Errorf("take over the network of an earlier release: %w", err)
		}
		log.Info("the site's own network is kept in a file of its own", "file", d.Current())
		if pinned {
			log.Warn("a network that was pinned by models promote may now be replaced: copy the file and name the copy as model in slurmbridge.yaml to pin it", "file", d.Current())
		}
	}
	if _, err := db.ExecContext(ctx, `DELETE FROM bridge_model_use`); err != nil {
		return fmt.Errorf("take over the network of an earlier release: %w", err)
	}
	names, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove networks of an earlier release: %w", err)
	}
	for _, f := range names {
		if stored.MatchString(f.Name()) {
			if err := os.Remove(filepath.Join(string(d), f.Name())); err != nil {
				return fmt.Errorf("remove networks of an earlier release: %w", err)
			}
		}
	}
	return nil
}
