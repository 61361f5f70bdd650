package credential_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/mungetest"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

func TestMungeCredentials(t *testing.T) {
	ctx := context.Background()
	here := mungetest.Start(t, mungetest.Key, 0)
	encode := func(m *credential.Munge) string {
		t.Helper()
		cred, err := m.Encode(ctx, "some\n\npayload")
		if err != nil {
			t.Fatal(err)
		}
		return cred
	}
	good := encode(here)
	c, err := here.Decode(ctx, good)
	if err != nil || c.UID != 0 || c.Payload != "some\n\npayload" || c.Behind().Abs() > 2*time.Second {
		t.Fatalf("%+v, %v", c, err)
	}
	if c, err := here.Decode(ctx, good); !errors.Is(err, credential.ErrReplayed) || c != nil {
		t.Errorf("the second time: %+v, %v", c, err)
	}
	if _, err := here.Decode(ctx, encode(mungetest.Start(t, "other", 0))); !errors.Is(err, credential.ErrInvalid) {
		t.Errorf("made with another key: %v", err)
	}
	for _, c := range []struct {
		skew time.Duration
		want string
	}{
		{-10 * time.Minute, "s behind this host's"},
		{10 * time.Minute, "s ahead of this host's"},
	} {
		got, err := here.Decode(ctx, encode(mungetest.Start(t, mungetest.Key, c.skew)))
		if !errors.Is(err, credential.ErrExpired) || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("clock off by %s: %v", c.skew, err)
		}
		if got == nil || (got.Behind()+c.skew).Abs() > 2*time.Second {
			t.Errorf("clock off by %s: %+v", c.skew, got)
		}
	}
	// A clock that is off by less is believed, and its offset reported.
	got, err := here.Decode(ctx, encode(mungetest.Start(t, mungetest.Key, -time.Minute)))
	if err != nil || (got.Behind()-time.Minute).Abs() > 2*time.Second {
		t.Errorf("clock a minute behind: %+v, %v", got, err)
	}
}

// What is wrong with munged here is not held against the credential.
func TestMungedIsDown(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	for name, m := range map[string]*credential.Munge{
		"no socket":  {Socket: filepath.Join(dir, "none")},
		"no program": {Bin: dir},
		"silent":     {Bin: script(t, "exit 0")},
		"timeout":    {Bin: script(t, "exit 7")},
		"killed":     {Bin: script(t, "kill -9 $$")},
		"forged":     {Bin: script(t, "echo 'STATUS: Success (0)'; echo; echo 'UID: root (0)'")},
	} {
		if c, err := m.Decode(ctx, "MUNGE:AAAA:"); !errors.Is(err, credential.ErrDown) || c != nil {
			t.Errorf("decode, %s: %+v, %v", name, c, err)
		}
		if _, err := m.Encode(ctx, "x"); !errors.Is(err, credential.ErrDown) {
			t.Errorf("encode, %s: %v", name, err)
		}
	}
}

func script(t *testing.T, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"munge", "unmunge"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Nothing but a credential reaches the command.
func TestOnlyCredentialsAreDecoded(t *testing.T) {
	m := &credential.Munge{Bin: "/nonexistent"}
	for _, cred := range []string{"", "MUNGE:", "MUNGE:a b:", "MUNGE:AAAA:\n", "--help", "MUNGE:" + strings.Repeat("A", 4*credential.MaxPayload) + ":"} {
		if _, err := m.Decode(context.Background(), cred); !errors.Is(err, credential.ErrInvalid) {
			t.Errorf("%.20q: %v", cred, err)
		}
	}
}
