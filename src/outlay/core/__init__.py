"""What every stage needs: tree paths, byte arithmetic, errors, text tables; nothing that knows a mesh."""
