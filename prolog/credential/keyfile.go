package credential

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ReadKeys reads the keys of a file for this process's user, and refuses a file that another user
// could read or replace. An error names the file and what to do.
func ReadKeys(file string) ([][]byte, error) {
	return ReadKeysAs(file, uint32(os.Geteuid()), uint32(os.Getegid()))
}

// ReadKeysAs is ReadKeys for a user of these ids: what that user could not read, or should
// not believe, is an error, too.
func ReadKeysAs(file string, uid, gid uint32) ([][]byte, error) {
	// Without O_NONBLOCK a FIFO in its place would keep us for ever.
	f, err := os.OpenFile(filepath.Clean(file), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := private(file, info, uid, gid); err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{filepath.Dir(file), filepath.Dir(real)} {
		if err := folderIsSafe(dir, uid); err != nil {
			return nil, fmt.Errorf("other users could replace %s: %w", file, err)
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, mostKeyFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > mostKeyFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", file, mostKeyFile)
	}
	keys, err := parseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return keys, nil
}

// private says what is wrong with a key file's owner and mode: it must belong to root or to its
// reader, and only the owner may read it; a group may if it is the reader's own, or root's.
func private(file string, info fs.FileInfo, uid, gid uint32) error {
	st, mode := info.Sys().(*syscall.Stat_t), info.Mode().Perm()
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no file", file)
	case st.Uid != 0 && st.Uid != uid:
		return fmt.Errorf("%s belongs to user %d, neither root nor its reader: chown %d it", file, st.Uid, uid)
	case mode&0o007 != 0:
		return fmt.Errorf("%s has mode %04o, and so all users have the key: make a new one, and chmod 0600 it", file, mode)
	case mode&0o030 != 0:
		return fmt.Errorf("%s has mode %04o, and its group may change it: chmod 0600 it", file, mode)
	case mode&0o040 != 0 && st.Gid != 0 && st.Gid != gid:
		return fmt.Errorf("%s has mode %04o, and group %d, which isn't its reader's, has the key: chmod 0600 it", file, mode, st.Gid)
	case uid != 0 && !(st.Uid == uid && mode&0o400 != 0) && !(st.Gid == gid && mode&0o040 != 0):
		return fmt.Errorf("%s can't be read by user %d: chown %d it", file, uid, uid)
	}
	return nil
}

// folderIsSafe says why users other than root and a reader may put files into a folder.
func folderIsSafe(dir string, uid uint32) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	switch st, mode := info.Sys().(*syscall.Stat_t), info.Mode(); {
	case st.Uid != 0 && st.Uid != uid:
		return fmt.Errorf("%s belongs to user %d: chown root it", dir, st.Uid)
	case mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0:
		return fmt.Errorf("%s has mode %04o: chmod go-w it", dir, mode.Perm())
	}
	return nil
}
